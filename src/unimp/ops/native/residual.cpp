// The residual step with the norm after it, one pass in each direction; see ops/residual.py.
//
// Sums over rows are computed in chunks of a fixed size, so they do not depend on the number of
// threads.

#include "core.h"
#include "lanes.h"

namespace {

constexpr int64_t kChunk = 2048;

// Rows of `kept` are parts of longer rows, which the hardware does not prefetch. They are prefetched
// this many rows ahead.
constexpr int64_t kAhead = 8;

// Rows are stored as S and computed as T.
template <class T, class S>
struct Rows {
    const Residual &r;
    const int64_t C;
    const T *on_kept, *on_message, *gate_bias, *weight, *bias;

    explicit Rows(const Residual &given)
        : r(given),
          C(given.width),
          on_kept(static_cast<const T *>(given.on_kept)),
          on_message(static_cast<const T *>(given.on_message)),
          gate_bias(static_cast<const T *>(given.gate_bias)),
          weight(static_cast<const T *>(given.weight)),
          bias(static_cast<const T *>(given.bias)) {}

    const S *message(int64_t i) const { return static_cast<const S *>(r.message) + i * r.message_stride; }
    const S *kept(int64_t i) const { return static_cast<const S *>(r.kept) + i * r.kept_stride; }

    // Where a row of results is computed, so that `write` can store it in `out`.
    static T *writable(T *out, T *) { return out; }
    static T *writable(bf16 *, T *space) { return space; }
    void write(T *, const T *) const {}
    void write(bf16 *out, const T *row) const { copy_row(out, row, C); }

    // y = (1 − β) m + β r, or m + r
    void mix(const T *m, const T *k, T beta, T *y) const {
        if (on_kept)
            for (int64_t d = 0; d < C; ++d) y[d] = m[d] + beta * (k[d] - m[d]);
        else
            for (int64_t d = 0; d < C; ++d) y[d] = m[d] + k[d];
    }

    // `scratch` has space for five rows, here and below.
    void forward(int64_t begin, int64_t end, T *scratch) const {
        for (int64_t i = begin; i < end; ++i) {
            if (i + kAhead < end) prefetch_row(kept(i + kAhead), C);
            const T *m = row_as(message(i), scratch, C), *k = row_as(kept(i), scratch + C, C);
            S *out = static_cast<S *>(r.out) + i * C;
            T *y = writable(out, scratch + 2 * C), beta = 0;
            if (on_kept) {
                const T z = dot<T, 0>(k, on_kept, C) + dot<T, 0>(m, on_message, C) +
                            (gate_bias ? *gate_bias : T(0));
                beta = T(1) / (T(1) + std::exp(-z));
                static_cast<T *>(r.beta)[i] = beta;
            }
            mix(m, k, beta, y);
            if (weight) {
                const T mean = total(y, C) / T(C);
                for (int64_t d = 0; d < C; ++d) y[d] -= mean;
                const T rstd = T(1) / std::sqrt(dot<T, 0>(y, y, C) / T(C) + T(r.eps));
                static_cast<T *>(r.mean)[i] = mean;
                static_cast<T *>(r.rstd)[i] = rstd;
                for (int64_t d = 0; d < C; ++d) y[d] = y[d] * rstd * weight[d] + bias[d];
            }
            if (r.relu)
                for (int64_t d = 0; d < C; ++d) y[d] = y[d] > 0 ? y[d] : (y[d] != y[d] ? y[d] : T(0));
            write(out, y);
        }
    }

    // `sums` contains da, db, dw, dd and dc of this chunk.
    void backward(int64_t begin, int64_t end, T *sums, T *scratch) const {
        T *da = sums, *db = da + C, *dw = db + C, *dd = dw + C, *dc = dd + C;
        T *x = scratch, *dy = x + C;
        for (int64_t i = begin; i < end; ++i) {
            if (i + kAhead < end) {
                prefetch_row(kept(i + kAhead), C);
                prefetch_row(static_cast<S *>(r.grad_kept) + (i + kAhead) * r.grad_kept_stride, C);
            }
            const T *m = row_as(message(i), scratch + 2 * C, C), *k = row_as(kept(i), scratch + 3 * C, C);
            const T *g = row_as(static_cast<const S *>(r.grad) + i * r.grad_stride, scratch + 4 * C, C);
            S *grad_message = static_cast<S *>(r.grad_message) + i * C;
            S *grad_kept = static_cast<S *>(r.grad_kept) + i * r.grad_kept_stride;
            const T beta = on_kept ? static_cast<const T *>(r.beta)[i] : T(0);
            mix(m, k, beta, x);
            if (weight) {
                const T mean = static_cast<const T *>(r.mean)[i];
                const T rstd = static_cast<const T *>(r.rstd)[i];
                for (int64_t d = 0; d < C; ++d) x[d] = (x[d] - mean) * rstd;
                if (r.relu)
                    for (int64_t d = 0; d < C; ++d) dy[d] = x[d] * weight[d] + bias[d] > 0 ? g[d] : T(0);
                else
                    memcpy(dy, g, C * sizeof(T));
                for (int64_t d = 0; d < C; ++d) {
                    dw[d] += dy[d] * x[d];
                    dd[d] += dy[d];
                    dy[d] *= weight[d];
                }
                const T g_mean = total(dy, C) / T(C), gx_mean = dot<T, 0>(dy, x, C) / T(C);
                for (int64_t d = 0; d < C; ++d) dy[d] = (dy[d] - g_mean - x[d] * gx_mean) * rstd;
            } else if (r.relu) {
                for (int64_t d = 0; d < C; ++d) dy[d] = x[d] > 0 ? g[d] : T(0);
            } else {
                memcpy(dy, g, C * sizeof(T));
            }
            if (!on_kept) {
                copy_row(grad_message, dy, C);
                copy_row(grad_kept, dy, C);
                continue;
            }
            const T dz = (dot<T, 0>(dy, k, C) - dot<T, 0>(dy, m, C)) * beta * (T(1) - beta);
            T *dm = writable(grad_message, x), *dk = writable(grad_kept, scratch + 4 * C);
            for (int64_t d = 0; d < C; ++d) {
                dm[d] = dy[d] * (T(1) - beta) + dz * on_message[d];
                dk[d] = dy[d] * beta + dz * on_kept[d];
                da[d] += dz * k[d];
                db[d] += dz * m[d];
            }
            write(grad_message, dm);
            write(grad_kept, dk);
            *dc += dz;
        }
    }
};

template <class T, class S>
void run(const Residual &r, bool backward) {
    const Rows<T, S> rows(r);
    const int64_t chunks = (r.rows + kChunk - 1) / kChunk;
#pragma omp parallel num_threads(r.threads) if (chunks > 1)
    {
        T *scratch = new T[5 * r.width]();
#pragma omp for schedule(dynamic)
        for (int64_t chunk = 0; chunk < chunks; ++chunk) {
            const int64_t begin = chunk * kChunk;
            const int64_t end = begin + kChunk < r.rows ? begin + kChunk : r.rows;
            if (backward) {
                T *sums = static_cast<T *>(r.parts) + chunk * (4 * r.width + 1);
                for (int64_t d = 0; d < 4 * r.width + 1; ++d) sums[d] = 0;
                rows.backward(begin, end, sums, scratch);
            } else {
                rows.forward(begin, end, scratch);
            }
        }
        delete[] scratch;
    }
}

void by_type(const Residual &r, bool backward) {
    if (r.is_double) return run<double, double>(r, backward);
    if (r.is_bf16) return run<float, bf16>(r, backward);
    run<float, float>(r, backward);
}

}  // namespace

void UNIMP_NAME(residual_forward, UNIMP_ISA)(const Residual &r) { by_type(r, false); }
void UNIMP_NAME(residual_backward, UNIMP_ISA)(const Residual &r) { by_type(r, true); }
