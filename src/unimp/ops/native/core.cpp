// The functions that Python calls, and the choice of instruction set.

#include "core.h"

#include <cstring>

namespace {

enum Level { kBaseline, kAvx2, kAvx512 };

Level best_here() {
#if defined(__x86_64__)
    const bool fused = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (fused && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw"))
        return kAvx512;
    if (fused) return kAvx2;
#endif
    return kBaseline;
}

Level level = best_here();

}  // namespace

extern "C" {

// A checksum of the sources, with which the loader detects a library built from other sources.
unsigned unimp_sources() { return UNIMP_SOURCES; }

// The instruction set in use: 0 baseline, 1 AVX2, 2 AVX-512.
int unimp_instruction_set() { return level; }

// Limits the instruction set (tests compare them); returns the one that is used from now on.
int unimp_limit_instruction_set(int most) {
    const Level best = best_here();
    level = most < best ? static_cast<Level>(most) : best;
    return level;
}

// Whether this CPU has instructions that multiply bf16 numbers, with which torch multiplies matrices.
int unimp_multiplies_bf16() {
#if defined(__x86_64__)
    return best_here() == kAvx512 && __builtin_cpu_supports("avx512bf16");
#else
    return 0;
#endif
}

#if defined(__x86_64__)
#define UNIMP_DISPATCH(function, argument)                              \
    if (level == kAvx512) return function##_avx512(*argument);          \
    if (level == kAvx2) return function##_avx2(*argument);              \
    function##_baseline(*argument)
#else
#define UNIMP_DISPATCH(function, argument) function##_baseline(*argument)
#endif

void unimp_attention_forward(const Attention *a) { UNIMP_DISPATCH(attention_forward, a); }
void unimp_attention_backward(const Attention *a) { UNIMP_DISPATCH(attention_backward, a); }
void unimp_residual_forward(const Residual *r) { UNIMP_DISPATCH(residual_forward, r); }
void unimp_residual_backward(const Residual *r) { UNIMP_DISPATCH(residual_backward, r); }
void unimp_dropout(const Dropout *d) { UNIMP_DISPATCH(dropout, d); }
void unimp_sum_rows(const Sums *s) { UNIMP_DISPATCH(sum_rows, s); }
void unimp_sum_columns(const Sums *s) { UNIMP_DISPATCH(sum_columns, s); }
}
