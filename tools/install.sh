#!/bin/sh
# Installs what the build left in build/release and build/man. `make install` calls it with PREFIX, DESTDIR, VERSION, PKGS.
set -eu
to=$DESTDIR$PREFIX
install -d "$to/bin" "$to/lib/pkgconfig" "$to/include" "$to/share/man/man1" \
    "$to/share/bash-completion/completions" "$to/share/zsh/site-functions" "$to/share/doc/systole"
install -m 755 build/release/systole "$to/bin/"
install -m 644 build/release/libsystole.a "$to/lib/"
install -m 644 include/systole.h "$to/include/"
install -m 644 build/man/*.1 "$to/share/man/man1/"
install -m 644 README.md LICENSE doc/*.md "$to/share/doc/systole/"
build/release/systole help --completion bash > "$to/share/bash-completion/completions/systole"
build/release/systole help --completion zsh > "$to/share/zsh/site-functions/_systole"
cat > "$to/lib/pkgconfig/systole.pc" <<PC
prefix=$PREFIX
libdir=\${prefix}/lib
includedir=\${prefix}/include

Name: systole
Description: runs large language models
Version: $VERSION
Requires.private: $PKGS
Libs: -L\${libdir} -lsystole
Libs.private: -lpthread -lm
Cflags: -I\${includedir}
PC
echo "installed in $to"
