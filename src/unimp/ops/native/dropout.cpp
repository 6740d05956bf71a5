// Dropout in one pass: its forward and its backward pass; see ops/dropout.py.

#include "core.h"
#include "lanes.h"

namespace {

constexpr int64_t kChunk = 1 << 16;

template <class T, class S>
void run(const Dropout &d) {
    const int64_t chunks = (d.count + kChunk - 1) / kChunk;
    const T factor = T(d.factor);
    const int16_t least = int16_t(d.least);
#pragma omp parallel for num_threads(d.threads) if (chunks > 1)
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
        const int64_t begin = chunk * kChunk, end = begin + kChunk < d.count ? begin + kChunk : d.count;
        const int16_t *words = static_cast<const int16_t *>(d.words);
        const S *x = static_cast<const S *>(d.x);
        S *out = static_cast<S *>(d.out);
        constexpr int N = 512;
        T read[N], row[N];  // two, so that the compiler can use vectors
        for (int64_t from = begin; from < end; from += N) {
            const int64_t n = from + N < end ? N : end - from;
            const T *given = row_as(x + from, read, n);
            for (int64_t i = 0; i < n; ++i) row[i] = words[from + i] >= least ? given[i] * factor : T(0);
            copy_row(out + from, static_cast<const T *>(row), n);
        }
    }
}

}  // namespace

void UNIMP_NAME(dropout, UNIMP_ISA)(const Dropout &d) {
    if (d.is_double) return run<double, double>(d);
    if (d.is_bf16) return run<float, bf16>(d);
    run<float, float>(d);
}
