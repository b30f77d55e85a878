/* x86.h - how kernels written with intrinsics are kept in registers. */
#pragma once

#define SY_INLINE static inline __attribute__((always_inline))
/* Sums live in registers only when loops over them are unrolled. Not under sanitizers: every access of what is then
 * still an array is checked, and copies of those checks take minutes to compile. */
#ifdef __has_feature
#define SY_CHECKED (__has_feature(address_sanitizer) || __has_feature(thread_sanitizer))
#elif defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SY_CHECKED 1
#else
#define SY_CHECKED 0
#endif
#if SY_CHECKED
#define SY_UNROLL
#else
#define SY_UNROLL _Pragma("GCC unroll 16")
#endif
