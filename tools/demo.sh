#!/bin/sh
# From a clone to an answer: packages, build, a small model, a question. `make demo` runs it.
set -eu
cd "$(dirname "$0")/.."
sh tools/packages.sh build --install
python3 -m pip --version > /dev/null 2>&1 || sh tools/packages.sh check --install # pip fetches the model
make --no-print-directory -j"$(nproc)" release
model=$(sh tools/fetch_model.sh smollm2)
question='In which city is the Eiffel Tower?'
echo
echo "\$ systole run -m $model '$question'"
build/release/systole run -m "$model" --progress --temperature 0 "$question"
