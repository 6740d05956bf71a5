// Weighted sums over the entries of compressed rows, by row and by column; see ops/row_sums.py.
//
// Each sum is computed by one thread in the order of its entries, so results do not depend on the
// number of threads.

#include "core.h"
#include "lanes.h"
#include "rows.h"

namespace {

template <class T>
const T *at(const void *base, int64_t offset) {
    return static_cast<const T *>(base) + offset;
}

template <class T, class S, class I>
void by_row(const Sums &s) {
    const I *indptr = at<I>(s.indptr, 0), *column = at<I>(s.column, 0), *slot = at<I>(s.slot, 0);
    const int64_t H = s.heads, row = H * s.width;
    over_rows<T, I>(s.indptr, s.rows, s.threads, row + kBlock * H, [&](int64_t begin, int64_t end, T *sum) {
        T *factors = sum + row;
        for (int64_t i = begin; i < end; ++i) {
            for (int64_t d = 0; d < row; ++d) sum[d] = 0;
            const int64_t stop = indptr[i + 1];
            for (int64_t first = indptr[i]; first < stop; first += kBlock) {
                const int64_t count = stop - first < kBlock ? stop - first : kBlock;
                const S *rows[kBlock], *next[kBlock];
                for (int64_t t = 0; t < count; ++t) {
                    const int64_t k = first + t, j = column[k];
                    const int64_t later = k + kBlock < s.entries ? k + kBlock : k;
                    rows[t] = at<S>(s.dense, j * s.dense_stride);
                    next[t] = at<S>(s.dense, int64_t(column[later]) * s.dense_stride);
                    const T all = s.column_factor ? *at<T>(s.column_factor, j) : T(1);
                    const T *weight = s.weight ? at<T>(s.weight, (s.slot ? int64_t(slot[k]) : k) * H) : nullptr;
                    for (int64_t h = 0; h < H; ++h) factors[t * H + h] = weight ? weight[h] * all : all;
                }
                for (int64_t h = 0; h < H; ++h)
                    add_rows<T, kWide, S>(sum + h * s.width, factors + h, H, rows, h * s.width, count, next, s.width);
            }
            if (s.row_factor) scale(sum, *at<T>(s.row_factor, i), row);
            copy_row(static_cast<S *>(s.out) + i * row, static_cast<const T *>(sum), row);
        }
    });
}

// The width is divided into parts of one cache line, so that the sums of all columns stay in the cache.
// Each part is computed by one thread, which reads the entries in order.
template <class T, class I>
void by_column(const Sums &s) {
    const I *indptr = at<I>(s.indptr, 0), *column = at<I>(s.column, 0);
    constexpr int64_t N = 64 / sizeof(T);
    typedef Lanes<T, N> L;
    const int64_t parts = (s.width + N - 1) / N;
#pragma omp parallel num_threads(s.threads) if (parts > 1 && s.entries > 4096)
    {
        T *sums = new T[s.columns * N];
#pragma omp for schedule(dynamic)
        for (int64_t part = 0; part < parts; ++part) {
            const int64_t from = part * N, width = s.width - from < N ? s.width - from : N;
            memset(sums, 0, s.columns * N * sizeof(T));
            for (int64_t i = 0; i < s.rows; ++i) {
                T row[N] = {};
                memcpy(row, at<T>(s.dense, i * s.dense_stride + from), width * sizeof(T));
                const typename L::vector held = L::load(row);
                for (int64_t k = indptr[i]; k < indptr[i + 1]; ++k) {
                    T *sum = sums + int64_t(column[k]) * N;
                    L::store(sum, L::load(sum) + *at<T>(s.weight, k) * held);
                }
            }
            for (int64_t c = 0; c < s.columns; ++c)
                memcpy(static_cast<T *>(s.out) + c * s.width + from, sums + c * N, width * sizeof(T));
        }
        delete[] sums;
    }
}

template <class T, class S>
void rows_by_index(const Sums &s) {
    s.is_wide ? by_row<T, S, int64_t>(s) : by_row<T, S, int32_t>(s);
}

template <class T>
void columns_by_index(const Sums &s) {
    s.is_wide ? by_column<T, int64_t>(s) : by_column<T, int32_t>(s);
}

}  // namespace

void UNIMP_NAME(sum_rows, UNIMP_ISA)(const Sums &s) {
    if (s.is_double) return rows_by_index<double, double>(s);
    if (s.is_bf16) return rows_by_index<float, bf16>(s);
    rows_by_index<float, float>(s);
}

void UNIMP_NAME(sum_columns, UNIMP_ISA)(const Sums &s) {
    s.is_double ? columns_by_index<double>(s) : columns_by_index<float>(s);
}
