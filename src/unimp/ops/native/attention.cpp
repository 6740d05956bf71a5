// Attention over the in-edges of each target, forward and backward; see ops/fused.py for equations.
//
// This file is compiled once per instruction set (UNIMP_ISA is its name). Rows are independent, and
// one thread sums each row in the order of its edges, so results do not depend on the number of
// threads. The main cost is reading rows of other nodes in an unpredictable order. Rows are therefore
// prefetched a few edges ahead, and each pass reads as few rows as possible.

#include "core.h"
#include "lanes.h"
#include "rows.h"

namespace {

// Shared: one row of a source, `key`, is its key and its value for every head (ops/absorbed.py). Then
// each head of a query and of a sum has the width of this row.
// Rows of q, k, v, o and their gradients are stored as S and computed as T.
template <class T, class S, class I, int D, bool Shared>
struct Passes {
    const Attention &a;
    const int64_t H, width, edge_width, edge_room, row;  // row: H·D elements
    const int64_t source_row;                            // elements of a key, or a value
    const T scale;
    const uint32_t seed_bits;
    const T kept;  // the factor of a weight that is not dropped

    explicit Passes(const Attention &given)
        : a(given),
          H(given.heads),
          width(D > 0 ? D : given.width),
          edge_width(given.edge_query ? given.edge_width : 0),
          edge_room(given.edge_query ? padded(given.edge_width) : 0),
          row(given.heads * (D > 0 ? D : given.width)),
          source_row(Shared ? width : row),
          scale(T(given.scale)),
          seed_bits(mix(uint32_t(given.seed))),
          kept(T(1) / T(1.0 - given.dropout)) {}

    static const T *at(const void *base, int64_t offset) { return static_cast<const T *>(base) + offset; }
    static T *at(void *base, int64_t offset) { return static_cast<T *>(base) + offset; }
    static const S *row_at(const void *base, int64_t offset) { return static_cast<const S *>(base) + offset; }
    static S *row_at(void *base, int64_t offset) { return static_cast<S *>(base) + offset; }
    static const I *index(const void *base) { return static_cast<const I *>(base); }

    const S *query(int64_t i) const { return row_at(a.query, i * a.query_stride); }
    const S *key(int64_t j) const { return row_at(a.key, j * a.key_stride); }
    const S *value(int64_t j) const { return Shared ? key(j) : row_at(a.value, j * a.value_stride); }
    const S *grad_out(int64_t i) const { return row_at(a.grad_out, i * a.grad_out_stride); }
    const T *edge_attr(int64_t slot) const { return at(a.edge_attr, slot * edge_width); }

    // The edge features of a slot as a row that can be read to its padded end. The last rows of all
    // are copied to `spare`.
    const T *edge_row(int64_t slot, T *spare) const {
        const T *e = edge_attr(slot);
        if (slot * edge_width + edge_room <= a.edges * edge_width) return e;
        memcpy(spare, e, edge_width * sizeof(T));
        return spare;
    }

    // The offset of head h in a key or a value.
    int64_t offset(int64_t h) const { return Shared ? 0 : h * width; }

    // The rows to prefetch while head h is computed; a shared row is prefetched once.
    static const S *const *ahead(const S *const *rows, int64_t h) { return Shared && h ? nullptr : rows; }

    T dropout(int64_t slot, int64_t h) const {
        const uint64_t number = uint64_t(a.numbers ? a.numbers[slot] : slot);
        const uint64_t counter = number * uint64_t(H) + uint64_t(h);
        const uint32_t bits = mix(uint32_t(counter) ^ seed_bits ^ mix(uint32_t(counter >> 32)));
        return int64_t(bits) >= a.drop_below ? kept : T(0);
    }

    // The edge whose rows are prefetched while those of `slot` are used; it may be in a later row.
    int64_t later(int64_t slot) const { return slot + kBlock < a.edges ? slot + kBlock : slot; }

    int64_t padded_block() const {
        constexpr int N = kLanes<T>;
        return (kBlock * H + N - 1) / N * N;
    }

    // The scratch size of one thread for either pass, in numbers.
    int64_t scratch_size() const {
        return 2 * padded_block() + 2 * row + (2 * H + 1) * edge_room + 4 * H + kLanes<T>;
    }

    void forward(int64_t begin, int64_t end, T *scratch) const {
        const I *indptr = index(a.indptr), *source = index(a.source);
        T *score = scratch, *sum = score + padded_block(), *edge_sum = sum + row;
        T *top = edge_sum + H * edge_room, *total = top + H, *mass = total + H;
        T *u = mass + H, *spare = u + H * edge_room;  // both are zero beyond the end of a row
        for (int64_t s = indptr[begin]; s < indptr[begin] + kBlock && s < a.edges; ++s)
            prefetch_row(key(source[s]), source_row);
        for (int64_t i = begin; i < end; ++i) {
            const S *q = query(i);
            for (int64_t d = 0; d < row; ++d) sum[d] = 0;
            for (int64_t d = 0; d < H * edge_room; ++d) edge_sum[d] = 0;
            for (int64_t h = 0; edge_width && h < H; ++h)
                memcpy(u + h * edge_room, at(a.edge_query, (i * H + h) * edge_width), edge_width * sizeof(T));
            for (int64_t h = 0; h < H; ++h) top[h] = -INFINITY, total[h] = 0, mass[h] = 0;
            const int64_t stop = indptr[i + 1];
            for (int64_t first = indptr[i]; first < stop; first += kBlock) {
                const int64_t count = stop - first < kBlock ? stop - first : kBlock;
                const S *keys[kBlock], *values[kBlock], *next[kBlock];
                for (int64_t t = 0; t < count; ++t) {
                    const int64_t j = source[first + t];
                    keys[t] = key(j), values[t] = value(j);
                    next[t] = key(source[later(first + t)]);
                }
                for (int64_t h = 0; h < H; ++h) {
                    dots<T, D>(q + h * width, keys, offset(h), count, score + h, H, Shared ? nullptr : values, width);
                    T highest = top[h];
                    for (int64_t t = 0; t < count; ++t) {
                        T &s = score[t * H + h];
                        if (edge_width) s += dot_padded(u + h * edge_room, edge_row(first + t, spare), edge_room);
                        s *= scale;
                        highest = s > highest ? s : highest;
                    }
                    if (highest > top[h] && total[h] > 0) {
                        const T shrink = std::exp(top[h] - highest);
                        total[h] *= shrink, mass[h] *= shrink;
                        ::scale(sum + h * width, shrink, width);
                        ::scale(edge_sum + h * edge_room, shrink, edge_room);
                    }
                    top[h] = highest;
                    // A score of −inf is a weight of zero, even if no other score has appeared yet.
                    const T from = highest > -INFINITY ? highest : T(0);
                    for (int64_t t = 0; t < count; ++t) score[t * H + h] -= from;
                }
                exp_in_place(score, count * H);
                for (int64_t h = 0; h < H; ++h) {
                    for (int64_t t = 0; t < count; ++t) {
                        T &weight = score[t * H + h];
                        total[h] += weight;
                        if (a.drop_below) weight *= dropout(first + t, h);
                        mass[h] += weight;
                        if (edge_width)
                            add_padded(edge_sum + h * edge_room, weight, edge_row(first + t, spare), edge_room);
                    }
                    add_rows<T, D>(sum + h * width, score + h, H, values, offset(h), count, ahead(next, h), width);
                }
            }
            S *out = row_at(a.out, i * row);
            double *log_sum = static_cast<double *>(a.log_sum) + i * H;
            for (int64_t h = 0; h < H; ++h) {
                const T inverse = stop > indptr[i] ? T(1) / total[h] : T(0);
                log_sum[h] = stop > indptr[i] ? double(top[h]) + std::log(double(total[h])) : 0.0;
                ::scale(sum + h * width, inverse, width);
                copy_row(out + h * width, sum + h * width, width);
                if (edge_width) {
                    T *mean = at(a.edge_mean, (i * H + h) * edge_width);
                    for (int64_t d = 0; d < edge_width; ++d) mean[d] = edge_sum[h * edge_room + d] * inverse;
                }
                if (a.mass) at(a.mass, i * H)[h] = mass[h] * inverse;
            }
        }
    }

    // The numbers of a target that the pass by source needs: L, δ, γ, the rounding error of L, u, ḡ.
    int64_t stats_row() const { return 4 * H + 2 * H * edge_room; }

    void gather_stats(int64_t begin, int64_t end) const {
        for (int64_t i = begin; i < end; ++i) {
            T *stats = at(a.by_target, i * stats_row());
            const S *g = grad_out(i), *out = row_at(static_cast<const void *>(a.out), i * row);
            for (int64_t h = 0; h < H; ++h) {
                T delta = dot<T, D>(g + h * width, out + h * width, width), gamma = 0;
                if (a.grad_mass) {
                    gamma = at(a.grad_mass, i * H)[h];
                    delta += gamma * at(static_cast<const void *>(a.mass), i * H)[h];
                }
                if (edge_width) {
                    const int64_t place = (i * H + h) * edge_width;
                    const T *mean = at(static_cast<const void *>(a.edge_mean), place);
                    delta += dot<T, 0>(at(a.grad_edge_mean, place), mean, edge_width);
                    T *u = stats + 4 * H + h * edge_room, *g_mean = u + H * edge_room;
                    memcpy(u, at(a.edge_query, place), edge_width * sizeof(T));
                    memcpy(g_mean, at(a.grad_edge_mean, place), edge_width * sizeof(T));
                    for (int64_t d = edge_width; d < edge_room; ++d) u[d] = g_mean[d] = 0;
                }
                const double log_sum = static_cast<const double *>(a.log_sum)[i * H + h];
                stats[h] = T(log_sum);
                stats[3 * H + h] = T(log_sum - double(stats[h]));
                stats[H + h] = delta;
                stats[2 * H + h] = gamma;
            }
        }
    }

    const T *stats_at(int64_t i) const {
        return at(static_cast<const void *>(a.by_target), i * stats_row());
    }

    // Computes dk and dv of the sources (their sum if one row is both), and ds of their edges.
    void backward_by_source(int64_t begin, int64_t end, T *scratch) const {
        const I *indptr = index(a.by_source_indptr), *target = index(a.by_source_target);
        const I *slot_of = index(a.by_source_slot);
        T *score = scratch, *grad = score + padded_block();
        T *key_sum = grad + padded_block(), *value_sum = Shared ? key_sum : key_sum + row;
        T *spare = key_sum + 2 * row;
        for (int64_t s = indptr[begin]; s < indptr[begin] + kBlock && s < a.edges; ++s) {
            prefetch_row(query(target[s]), row);
            prefetch_row(grad_out(target[s]), row);
        }
        for (int64_t j = begin; j < end; ++j) {
            const S *k = key(j), *v = value(j);
            for (int64_t d = 0; d < (Shared ? source_row : 2 * row); ++d) key_sum[d] = 0;
            const int64_t stop = indptr[j + 1];
            for (int64_t first = indptr[j]; first < stop; first += kBlock) {
                const int64_t count = stop - first < kBlock ? stop - first : kBlock;
                const S *queries[kBlock], *grads[kBlock], *next_queries[kBlock], *next_grads[kBlock];
                const T *stats_of[kBlock];
                for (int64_t t = 0; t < count; ++t) {
                    const int64_t i = target[first + t], next = target[later(first + t)];
                    queries[t] = query(i), grads[t] = grad_out(i), stats_of[t] = stats_at(i);
                    next_queries[t] = query(next), next_grads[t] = grad_out(next);
                    prefetch_row(stats_at(next), stats_row());
                    if (edge_width) prefetch_row(edge_attr(slot_of[later(first + t)]), edge_width);
                }
                for (int64_t h = 0; h < H; ++h) {
                    dots<T, D>(k + offset(h), queries, h * width, count, score + h, H, next_queries, width);
                    dots<T, D>(v + offset(h), grads, h * width, count, grad + h, H, next_grads, width);
                    for (int64_t t = 0; t < count; ++t) {
                        const T *stats = stats_of[t];
                        T s = score[t * H + h], da = grad[t * H + h] + stats[2 * H + h];
                        if (edge_width) {
                            const T *u = stats + 4 * H + h * edge_room;
                            const T *e = edge_row(slot_of[first + t], spare);
                            s += dot_padded(u, e, edge_room);
                            da += dot_padded(u + H * edge_room, e, edge_room);
                        }
                        // L is at least every score; only rounding can make this positive.
                        const T below = (s * scale - stats[h]) - stats[3 * H + h];
                        score[t * H + h] = below > 0 ? T(0) : below;
                        grad[t * H + h] = da;
                    }
                }
                exp_in_place(score, count * H);
                for (int64_t h = 0; h < H; ++h) {
                    for (int64_t t = 0; t < count; ++t) {
                        const int64_t slot = slot_of[first + t];
                        const T p = score[t * H + h];
                        const T weight = a.drop_below ? p * dropout(slot, h) : p;
                        score[t * H + h] = weight;
                        T &ds = grad[t * H + h];
                        ds = (weight * ds - p * stats_of[t][H + h]) * scale;
                        at(a.score_grad, slot * H)[h] = ds;
                        if (a.weight) at(a.weight, slot * H)[h] = weight;
                    }
                    add_rows<T, D, S>(key_sum + offset(h), grad + h, H, queries, h * width, count, nullptr, width);
                    add_rows<T, D, S>(value_sum + offset(h), score + h, H, grads, h * width, count, nullptr, width);
                }
            }
            copy_row(row_at(a.grad_key, j * a.grad_key_stride), key_sum, source_row);
            if (!Shared) copy_row(row_at(a.grad_value, j * a.grad_value_stride), value_sum, row);
        }
    }

    // Computes dq and du of the targets and, if requested, de of their edges, from ds.
    void backward_by_target(int64_t begin, int64_t end, T *scratch) const {
        const I *indptr = index(a.indptr), *source = index(a.source);
        T *sum = scratch, *edge_sum = sum + row, *spare = edge_sum + H * edge_room;
        for (int64_t s = indptr[begin]; s < indptr[begin] + kBlock && s < a.edges; ++s)
            prefetch_row(key(source[s]), source_row);
        for (int64_t i = begin; i < end; ++i) {
            for (int64_t d = 0; d < row + H * edge_room; ++d) sum[d] = 0;
            const T *stats = stats_at(i);
            const int64_t stop = indptr[i + 1];
            for (int64_t first = indptr[i]; first < stop; first += kBlock) {
                const int64_t count = stop - first < kBlock ? stop - first : kBlock;
                const S *keys[kBlock], *next[kBlock];
                const T *ds = at(static_cast<const void *>(a.score_grad), first * H);
                for (int64_t t = 0; t < count; ++t) {
                    keys[t] = key(source[first + t]);
                    next[t] = key(source[later(first + t)]);
                }
                for (int64_t h = 0; h < H; ++h)
                    add_rows<T, D>(sum + h * width, ds + h, H, keys, offset(h), count, ahead(next, h), width);
            }
            for (int64_t slot = indptr[i]; edge_width && slot < stop; ++slot) {
                const T *ds = at(static_cast<const void *>(a.score_grad), slot * H);
                for (int64_t h = 0; h < H; ++h)
                    add_padded(edge_sum + h * edge_room, ds[h], edge_row(slot, spare), edge_room);
                if (a.grad_edge_attr) {
                    const T *weight = at(static_cast<const void *>(a.weight), slot * H);
                    T *de = at(a.grad_edge_attr, slot * edge_width);
                    for (int64_t d = 0; d < edge_width; ++d) de[d] = 0;
                    for (int64_t h = 0; h < H; ++h) {
                        const T *u = stats + 4 * H + h * edge_room;
                        add_scaled<T, 0>(de, ds[h], u, edge_width);
                        add_scaled<T, 0>(de, weight[h], u + H * edge_room, edge_width);
                    }
                }
            }
            copy_row(row_at(a.grad_query, i * a.grad_query_stride), sum, row);
            for (int64_t h = 0; edge_width && h < H; ++h)
                memcpy(at(a.grad_edge_query, (i * H + h) * edge_width), edge_sum + h * edge_room,
                       edge_width * sizeof(T));
        }
    }
};

template <class T, class S, class I, int D, bool Shared>
void run(const Attention &a, bool backward) {
    const Passes<T, S, I, D, Shared> passes(a);
    const int64_t size = passes.scratch_size();
    if (!backward) {
        over_rows<T, I>(a.indptr, a.targets, a.threads, size,
                        [&](int64_t b, int64_t e, T *s) { passes.forward(b, e, s); });
        return;
    }
    over_rows<T, I>(a.indptr, a.targets, a.threads, size,
                    [&](int64_t b, int64_t e, T *) { passes.gather_stats(b, e); });
    over_rows<T, I>(a.by_source_indptr, a.sources, a.threads, size,
                    [&](int64_t b, int64_t e, T *s) { passes.backward_by_source(b, e, s); });
    over_rows<T, I>(a.indptr, a.targets, a.threads, size,
                    [&](int64_t b, int64_t e, T *s) { passes.backward_by_target(b, e, s); });
}

template <class T, class S, class I>
void by_width(const Attention &a, bool backward) {
    if (a.is_shared) return run<T, S, I, kWide, true>(a, backward);
    if constexpr (sizeof(T) == sizeof(float)) {
        if (a.width == 128) return run<T, S, I, 128, false>(a, backward);
        if (a.width == 64) return run<T, S, I, 64, false>(a, backward);
        if (a.width == 32) return run<T, S, I, 32, false>(a, backward);
    }
    run<T, S, I, 0, false>(a, backward);
}

template <class T, class S>
void by_index(const Attention &a, bool backward) {
    a.is_wide ? by_width<T, S, int64_t>(a, backward) : by_width<T, S, int32_t>(a, backward);
}

void by_type(const Attention &a, bool backward) {
    if (a.is_double) return by_index<double, double>(a, backward);
    if (a.is_bf16) return by_index<float, bf16>(a, backward);
    by_index<float, float>(a, backward);
}

}  // namespace

void UNIMP_NAME(attention_forward, UNIMP_ISA)(const Attention &a) { by_type(a, false); }
void UNIMP_NAME(attention_backward, UNIMP_ISA)(const Attention &a) { by_type(a, true); }
