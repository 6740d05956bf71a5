// Vector operations with the compiler's vector types, in the width of the instruction set: AVX-512,
// AVX2, SSE2 and NEON use the same source. Everything is `static`, because this file is compiled once
// per instruction set and the linker must not mix the copies.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

#ifndef UNIMP_VECTOR_BYTES
#define UNIMP_VECTOR_BYTES 16
#endif

// A number in memory with the range of a float and 8 bits of precision: the upper half of a float.
// Rows may be stored in this type; they are computed in float.
struct bf16 {
    uint16_t bits;
};

template <class T, int N>
struct Lanes {
    typedef T vector __attribute__((vector_size(N * sizeof(T))));
    static inline vector load(const T *p) {
        vector v;
        memcpy(&v, p, sizeof v);
        return v;
    }
    static inline void store(T *p, vector v) { memcpy(p, &v, sizeof v); }

    static inline vector load(const bf16 *p) {
#if defined(__AVX512F__)
        // Compilers convert such vectors in two halves.
        if constexpr (N == 16) {
            const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(p));
            return vector(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
        }
#endif
        typename Lanes<uint16_t, N>::vector half;
        memcpy(&half, p, sizeof half);
        typedef typename Lanes<uint32_t, N>::vector words;
        const words bits = __builtin_convertvector(half, words) << 16;
        vector v;
        memcpy(&v, &bits, sizeof v);
        return v;
    }
    // Rounds to nearest, ties to even. NaN stays NaN.
    static inline void store(bf16 *p, vector v) {
        typename Lanes<uint32_t, N>::vector bits;
        memcpy(&bits, &v, sizeof bits);
        const auto rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
        const auto kept = v == v ? rounded : (bits >> 16) | 0x40u;
        typedef typename Lanes<uint16_t, N>::vector halves;
        const halves half = __builtin_convertvector(kept, halves);
        memcpy(p, &half, sizeof half);
    }
    static inline T sum(vector v) {
        // Halves that are copied through memory would be stored and loaded again.
        if constexpr (N == 2) {
            return v[0] + v[1];
        } else {
            typename Lanes<T, N / 2>::vector low, high;
            if constexpr (N == 16) {
                low = __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7);
                high = __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15);
            } else if constexpr (N == 8) {
                low = __builtin_shufflevector(v, v, 0, 1, 2, 3);
                high = __builtin_shufflevector(v, v, 4, 5, 6, 7);
            } else {
                low = __builtin_shufflevector(v, v, 0, 1);
                high = __builtin_shufflevector(v, v, 2, 3);
            }
            return Lanes<T, N / 2>::sum(low + high);
        }
    }
};

template <class T>
constexpr int kLanes = UNIMP_VECTOR_BYTES / sizeof(T);

// One number of a row.
template <class T>
static inline T number(T x) {
    return x;
}
static inline float number(bf16 x) {
    const uint32_t bits = uint32_t(x.bits) << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

// out = row, in the type of `out`
template <class T>
static inline void copy_row(T *out, const T *row, int64_t n) {
    memcpy(out, row, n * sizeof(T));
}
template <class Out, class In>
static inline void copy_row(Out *out, const In *row, int64_t n) {
    constexpr int N = kLanes<float>;
    typedef Lanes<float, N> L;
    int64_t d = 0;
    for (; d + N <= n; d += N) L::store(out + d, L::load(row + d));
    if (d == n) return;
    In from[N] = {};
    Out to[N];
    memcpy(from, row + d, (n - d) * sizeof(In));
    L::store(to, L::load(from));
    memcpy(out + d, to, (n - d) * sizeof(Out));
}

// The row as numbers of type T: itself, or a copy in `space`.
template <class T>
static inline const T *row_as(const T *row, T *, int64_t) {
    return row;
}
template <class T>
static inline const T *row_as(const bf16 *row, T *space, int64_t n) {
    copy_row(space, row, n);
    return space;
}

// The name of a function with the name of its instruction set.
#define UNIMP_JOIN(name, isa) name##_##isa
#define UNIMP_NAME(name, isa) UNIMP_JOIN(name, isa)

// Σ a·b over `width` elements; D > 0 is a width that is known at compile time, here and below.
template <class T, int D, class A, class B>
static inline T dot(const A *a, const B *b, int64_t width) {
    constexpr int N = kLanes<T>;
    typedef Lanes<T, N> L;
    const int64_t n = D > 0 ? D : width;
    typename L::vector first = {}, second = {};
    int64_t d = 0;
    for (; d + 2 * N <= n; d += 2 * N) {
        first += L::load(a + d) * L::load(b + d);
        second += L::load(a + d + N) * L::load(b + d + N);
    }
    for (; d + N <= n; d += N) first += L::load(a + d) * L::load(b + d);
    T total = L::sum(first + second);
    if constexpr (D <= 0) {
        if constexpr (N > 4) {
            typedef Lanes<T, 4> Four;
            typename Four::vector rest = {};
            for (; d + 4 <= n; d += 4) rest += Four::load(a + d) * Four::load(b + d);
            total += Four::sum(rest);
        }
        for (; d < n; ++d) total += number(a[d]) * number(b[d]);
    }
    return total;
}

// out += factor · row
template <class T, int D, class S>
static inline void add_scaled(T *out, T factor, const S *row, int64_t width) {
    constexpr int N = kLanes<T>;
    typedef Lanes<T, N> L;
    const int64_t n = D > 0 ? D : width;
    int64_t d = 0;
    for (; d + N <= n; d += N) L::store(out + d, L::load(out + d) + factor * L::load(row + d));
    if constexpr (D <= 0) {
        if constexpr (N > 4) {
            typedef Lanes<T, 4> Four;
            for (; d + 4 <= n; d += 4) Four::store(out + d, Four::load(out + d) + factor * Four::load(row + d));
        }
        for (; d < n; ++d) out[d] += factor * number(row[d]);
    }
}

template <class T>
static inline void prefetch_row(const T *row, int64_t elements) {
    const char *begin = reinterpret_cast<const char *>(row);
    const char *end = reinterpret_cast<const char *>(row + elements);
    for (const char *line = begin; line < end; line += 64) __builtin_prefetch(line, 0, 3);
}

// Used instead of a compile-time width: rows of any width, usually several vectors.
constexpr int kWide = -1;

// The largest number of vectors of a wide row that are in registers at a time.
constexpr int kHeld = 8;

// out[t · step] = fixed · rows[t], or += if `add`, over V vectors, which stay in registers.
template <class T, int V, class S>
static inline void dots_held(const S *fixed, const S *const *rows, int64_t offset, int64_t count, T *out,
                             int64_t step, const S *const *ahead, bool add) {
    constexpr int N = kLanes<T>;
    typedef Lanes<T, N> L;
    typename L::vector held[V];
    for (int c = 0; c < V; ++c) held[c] = L::load(fixed + c * N);
    for (int64_t t = 0; t < count; ++t) {
        const S *row = rows[t] + offset;
        if (ahead) prefetch_row(ahead[t] + offset, V * N);
        typename L::vector first = held[0] * L::load(row);
        if constexpr (V > 1) {
            typename L::vector second = held[1] * L::load(row + N);
            for (int c = 2; c + 1 < V; c += 2) {
                first += held[c] * L::load(row + c * N);
                second += held[c + 1] * L::load(row + (c + 1) * N);
            }
            if constexpr (V % 2 == 1) first += held[V - 1] * L::load(row + (V - 1) * N);
            first += second;
        }
        const T sum = L::sum(first);
        out[t * step] = add ? out[t * step] + sum : sum;
    }
}

// sum += Σ_t factors[t · step] · rows[t] over V vectors, which stay in registers.
template <class T, int V, class S>
static inline void add_rows_held(T *sum, const T *factors, int64_t step, const S *const *rows,
                                 int64_t offset, int64_t count, const S *const *ahead) {
    constexpr int N = kLanes<T>;
    typedef Lanes<T, N> L;
    typename L::vector held[V];
    for (int c = 0; c < V; ++c) held[c] = L::load(sum + c * N);
    for (int64_t t = 0; t < count; ++t) {
        const S *row = rows[t] + offset;
        const T factor = factors[t * step];
        if (ahead) prefetch_row(ahead[t] + offset, V * N);
        for (int c = 0; c < V; ++c) held[c] += factor * L::load(row + c * N);
    }
    for (int c = 0; c < V; ++c) L::store(sum + c * N, held[c]);
}

// Calls work(V, from) for parts of `width` elements: V vectors (a compile-time constant), starting at
// an element. Returns the start of the rest that is shorter than a vector.
template <class T, class Work>
static inline int64_t by_vectors(int64_t width, Work work) {
    constexpr int N = kLanes<T>;
    int64_t from = 0;
    for (; from + kHeld * N <= width; from += kHeld * N) work(std::integral_constant<int, kHeld>(), from);
    const int64_t whole = (width - from) / N;
    switch (whole) {
        case 7: work(std::integral_constant<int, 7>(), from); break;
        case 6: work(std::integral_constant<int, 6>(), from); break;
        case 5: work(std::integral_constant<int, 5>(), from); break;
        case 4: work(std::integral_constant<int, 4>(), from); break;
        case 3: work(std::integral_constant<int, 3>(), from); break;
        case 2: work(std::integral_constant<int, 2>(), from); break;
        case 1: work(std::integral_constant<int, 1>(), from); break;
    }
    return from + whole * N;
}

// Σ a·b over the end of a wide row that is shorter than a vector; `dot` would also sum empty vectors.
template <class T, class S>
static inline T dot_rest(const S *a, const S *b, int64_t n) {
    T total = 0;
    int64_t d = 0;
    if constexpr (kLanes<T> > 4) {
        typedef Lanes<T, 4> Four;
        typename Four::vector rest = {};
        for (; d + 4 <= n; d += 4) rest += Four::load(a + d) * Four::load(b + d);
        total = Four::sum(rest);
    }
    for (; d < n; ++d) total += number(a[d]) * number(b[d]);
    return total;
}

// out[t · step] = fixed · rows[t], for `count` rows. `fixed` stays in registers, at most eight vectors
// at a time. Meanwhile, rows that are needed later are prefetched: ahead[t], which may be null for
// wide rows.
template <class T, int D, class S>
static inline void dots(const S *fixed, const S *const *rows, int64_t offset, int64_t count, T *out,
                        int64_t step, const S *const *ahead, int64_t width) {
    if constexpr (D == kWide) {
        const int64_t end = by_vectors<T>(width, [&](auto vectors, int64_t from) {
            dots_held<T, decltype(vectors)::value>(fixed + from, rows, offset + from, count, out, step,
                                                   ahead, from > 0);
        });
        for (int64_t t = 0; end < width && t < count; ++t) {
            if (ahead) prefetch_row(ahead[t] + offset + end, width - end);
            const T sum = dot_rest<T>(fixed + end, rows[t] + offset + end, width - end);
            out[t * step] = end ? out[t * step] + sum : sum;
        }
    } else if constexpr (D == 0) {
        for (int64_t t = 0; t < count; ++t) {
            prefetch_row(ahead[t] + offset, width);
            out[t * step] = dot<T, 0>(fixed, rows[t] + offset, width);
        }
    } else {
        constexpr int N = kLanes<T>, most = D / N < kHeld ? D / N : kHeld;
        for (int from = 0; from < D; from += most * N)
            dots_held<T, most>(fixed + from, rows, offset + from, count, out, step, ahead, from > 0);
    }
}

// sum += Σ_t factors[t · step] · rows[t], with the sum in registers; `ahead` as above, or null.
template <class T, int D, class S>
static inline void add_rows(T *sum, const T *factors, int64_t step, const S *const *rows,
                            int64_t offset, int64_t count, const S *const *ahead, int64_t width) {
    if constexpr (D == kWide) {
        const int64_t end = by_vectors<T>(width, [&](auto vectors, int64_t from) {
            add_rows_held<T, decltype(vectors)::value>(sum + from, factors, step, rows, offset + from,
                                                       count, ahead);
        });
        for (int64_t t = 0; end < width && t < count; ++t) {
            if (ahead) prefetch_row(ahead[t] + offset + end, width - end);
            add_scaled<T, 0>(sum + end, factors[t * step], rows[t] + offset + end, width - end);
        }
    } else if constexpr (D == 0) {
        for (int64_t t = 0; t < count; ++t) {
            if (ahead) prefetch_row(ahead[t] + offset, width);
            add_scaled<T, 0>(sum, factors[t * step], rows[t] + offset, width);
        }
    } else {
        constexpr int N = kLanes<T>, most = D / N < kHeld ? D / N : kHeld;
        for (int from = 0; from < D; from += most * N)
            add_rows_held<T, most>(sum + from, factors, step, rows, offset + from, count, ahead);
    }
}

// Rows of edge features are short. A row is read as whole vectors, beyond its end if more rows follow,
// and multiplied by rows that are zero there. The number of elements for a row of `width`:
static inline int64_t padded(int64_t width) {
    return width <= 4 ? 4 : width <= 8 ? 8 : (width + 15) / 16 * 16;
}

// Σ a·b over a padded row
template <class T>
static inline T dot_padded(const T *a, const T *b, int64_t elements) {
    if (elements == 4) return Lanes<T, 4>::sum(Lanes<T, 4>::load(a) * Lanes<T, 4>::load(b));
    if (elements == 8) return Lanes<T, 8>::sum(Lanes<T, 8>::load(a) * Lanes<T, 8>::load(b));
    typedef Lanes<T, 16> L;
    typename L::vector sum = L::load(a) * L::load(b);
    for (int64_t d = 16; d < elements; d += 16) sum += L::load(a + d) * L::load(b + d);
    return L::sum(sum);
}

// out += factor · row, a padded row
template <class T>
static inline void add_padded(T *out, T factor, const T *row, int64_t elements) {
    if (elements == 4) {
        typedef Lanes<T, 4> L;
        L::store(out, L::load(out) + factor * L::load(row));
    } else if (elements == 8) {
        typedef Lanes<T, 8> L;
        L::store(out, L::load(out) + factor * L::load(row));
    } else {
        typedef Lanes<T, 16> L;
        for (int64_t d = 0; d < elements; d += 16)
            L::store(out + d, L::load(out + d) + factor * L::load(row + d));
    }
}

// Σ a
template <class T>
static inline T total(const T *a, int64_t n) {
    constexpr int N = kLanes<T>;
    typedef Lanes<T, N> L;
    typename L::vector sum = {};
    int64_t d = 0;
    for (; d + N <= n; d += N) sum += L::load(a + d);
    T all = L::sum(sum);
    for (; d < n; ++d) all += a[d];
    return all;
}

template <class T>
static inline void scale(T *row, T factor, int64_t n) {
    for (int64_t d = 0; d < n; ++d) row[d] *= factor;
}

// exp of non-positive numbers, in place. exp x = 2^k · exp r with |r| ≤ ln 2 / 2: k by rounding, exp r
// by a polynomial of degree 6 that is exact to one unit in the last place.
static inline void exp_in_place(float *x, int64_t n) {
    constexpr int N = kLanes<float>;
    typedef Lanes<float, N> L;
    typedef typename Lanes<int32_t, N>::vector ints;
    typename L::vector least = {};
    least -= 87.0f;  // e^-87 is about the smallest normal number and is treated as zero
    for (int64_t i = 0; i < n; i += N) {  // the caller's array is padded to whole vectors
        typename L::vector v = L::load(x + i);
        v = v < least ? least : v;
        const typename L::vector shifted = v * 1.44269504088896f + 12582912.0f;  // 1.5 · 2^23
        const typename L::vector k = shifted - 12582912.0f;
        typename L::vector r = v - k * 0.693359375f;
        r = r + k * 2.12194440e-4f;
        typename L::vector p = r * 1.9875691500e-4f + 1.3981999507e-3f;
        p = p * r + 8.3334519073e-3f;
        p = p * r + 4.1665795894e-2f;
        p = p * r + 1.6666665459e-1f;
        p = p * r + 5.0000001201e-1f;
        p = p * r * r + r + 1.0f;
        const ints power = (__builtin_convertvector(k, ints) + 127) << 23;
        typename L::vector two;
        memcpy(&two, &power, sizeof two);
        L::store(x + i, p * two);
    }
}

static inline void exp_in_place(double *x, int64_t n) {
    for (int64_t i = 0; i < n; ++i) x[i] = std::exp(x[i]);
}

// A bijective hash of 32-bit words, the same as in ops/reference.py.
static inline uint32_t mix(uint32_t bits) {
    bits = ((bits >> 16) ^ bits) * 0x7FEB352Du;
    bits = ((bits >> 15) ^ bits) * 0x846CA68Bu;
    return (bits >> 16) ^ bits;
}
