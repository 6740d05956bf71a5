// Neighbor sampling and induced subgraphs on the CSR of in-edges. This code uses neither vector
// instructions nor threads: Python threads prepare several batches in parallel during training.

#include "pages.h"

#include <cstdint>
#include <cstring>
#include <new>
#include <utility>
#include <vector>

namespace {

// Counter-based random numbers: the n-th number of a stream is a hash of seed and n (splitmix64).
// ops/sampling.py draws the same numbers without this file.
struct Stream {
    uint64_t state;
    // The numbers that belong to a node: what is drawn for a node does not depend on other nodes.
    static Stream of(uint64_t seed, int64_t node, int64_t take) {
        return {seed + 0x9E3779B97F4A7C15ull * (uint64_t(node) * uint64_t(take))};
    }
    uint64_t next() {
        uint64_t z = (state += 0x9E3779B97F4A7C15ull);
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
        return z ^ (z >> 31);
    }
    // Uniform below `bound`, which is below 2^32; the relative bias of a number is at most
    // bound / 2^32.
    uint64_t below(uint64_t bound) { return ((next() >> 32) * bound) >> 32; }
};

void sort_few(int64_t *numbers, int64_t count) {
    for (int64_t i = 1; i < count; ++i) {
        const int64_t held = numbers[i];
        int64_t j = i;
        for (; j > 0 && numbers[j - 1] > held; --j) numbers[j] = numbers[j - 1];
        numbers[j] = held;
    }
}

// Draws `take` distinct numbers below `population`, in ascending order, by Floyd's algorithm: the
// j-th draw is uniform below n − take + j + 1; if it repeats an earlier one, n − take + j is used.
void draw(Stream &stream, int64_t population, int64_t take, int64_t *drawn) {
    for (int64_t j = 0; j < take; ++j) {
        const int64_t top = population - take + j;
        int64_t number = int64_t(stream.below(uint64_t(top) + 1));
        for (int64_t i = 0; i < j; ++i)
            if (drawn[i] == number) {
                number = top;
                break;
            }
        drawn[j] = number;
    }
    sort_few(drawn, take);
}

// The number of each node in a batch: an array over all nodes of the graph, −1 for a node without a
// number.
struct Array {
    int32_t *numbers;
    void prefetch(int64_t node) const { __builtin_prefetch(numbers + node); }
    int32_t &operator[](int64_t node) { return numbers[node]; }
};

// The same as a hash table of the nodes of the batch, for graphs with so many nodes that an array
// would take too much memory.
struct Table {
    std::vector<int64_t> keys;
    std::vector<int32_t> numbers;
    uint64_t mask;
    explicit Table(int64_t most) {
        uint64_t size = 64;
        while (size < 2 * uint64_t(most)) size *= 2;
        keys.assign(size, -1);
        numbers.assign(size, -1);
        mask = size - 1;
    }
    uint64_t place(int64_t node) const { return Stream{uint64_t(node)}.next() & mask; }
    void prefetch(int64_t node) const { __builtin_prefetch(keys.data() + place(node)); }
    int32_t &operator[](int64_t node) {
        uint64_t at = place(node);
        while (keys[at] >= 0 && keys[at] != node) at = (at + 1) & mask;
        keys[at] = node;
        return numbers[at];
    }
};

constexpr int64_t kAhead = 16;  // targets whose edges are prefetched

template <class P, class I, class Numbers>
int64_t sample(const P *indptr, const I *source, Numbers &local, int64_t *nodes, int64_t num_targets,
               int64_t num_nodes, int64_t take, uint64_t seed, int32_t *out_indptr, int64_t *slots,
               int32_t *out_source, int64_t gap) {
    // First the slots of all targets, then their sources: each loop prefetches one array, early
    // enough.
    int64_t count = 0;
    out_indptr[0] = 0;
    for (int64_t t = 0; t < num_targets; ++t) {
        if (t + kAhead < num_targets) __builtin_prefetch(indptr + nodes[t + kAhead]);
        const int64_t begin = indptr[nodes[t]], degree = int64_t(indptr[nodes[t] + 1]) - begin;
        if (take < 0 || degree <= take) {
            for (int64_t k = 0; k < degree; ++k) slots[count + k] = begin + k;
            count += degree;
        } else {
            Stream stream = Stream::of(seed, nodes[t], take);
            draw(stream, degree, take, slots + count);
            for (int64_t k = 0; k < take; ++k) slots[count + k] += begin;
            count += take;
        }
        out_indptr[t + 1] = int32_t(count);
    }
    if (gap >= 0) unimp_read_ahead(source, sizeof(I), slots, count, gap);
    constexpr int64_t far = 2 * kAhead;
    for (int64_t k = 0; k < count; ++k) {
        if (k + 2 * far < count) __builtin_prefetch(source + slots[k + 2 * far]);
        if (k + far < count) local.prefetch(source[slots[k + far]]);
        const int64_t j = source[slots[k]];
        if (local[j] < 0) {
            local[j] = int32_t(num_nodes);
            nodes[num_nodes++] = j;
        }
        out_source[k] = local[j];
    }
    return num_nodes;
}

template <class P, class I>
int64_t induce(const P *indptr, const I *source, const int32_t *local, const int64_t *nodes,
               int64_t count, int64_t *out_indptr, int64_t *slots, int32_t *out_source) {
    int64_t kept = 0;
    out_indptr[0] = 0;
    for (int64_t i = 0; i < count; ++i) {
        const int64_t end = indptr[nodes[i] + 1];
        for (int64_t k = indptr[nodes[i]]; k < end; ++k) {
            if (k + 4 * kAhead < end) __builtin_prefetch(local + source[k + 4 * kAhead]);
            // Always written, and overwritten next if the edge is dropped: this avoids a branch.
            out_source[kept] = local[source[k]];
            slots[kept] = k;
            kept += out_source[kept] >= 0;
        }
        out_indptr[i + 1] = kept;
    }
    return kept;
}

// Calls a function with the row pointers and the sources in their types. The row pointers of a graph
// on disk are int64, because it may have more than 2^31 edges; its sources are int32.
template <class Call>
int64_t with_types(int wide_indptr, int wide_source, const void *indptr, const void *source,
                   Call call) {
    const auto *pointers = static_cast<const int64_t *>(indptr);
    const auto *narrow_pointers = static_cast<const int32_t *>(indptr);
    const auto *sources = static_cast<const int64_t *>(source);
    const auto *narrow_sources = static_cast<const int32_t *>(source);
    if (wide_source)
        return wide_indptr ? call(pointers, sources) : call(narrow_pointers, sources);
    return wide_indptr ? call(pointers, narrow_sources) : call(narrow_pointers, narrow_sources);
}

}  // namespace

extern "C" {

// Draws at most `take` (−1: all) in-edges of each of nodes[0 … num_targets) and numbers their
// sources. `local` is −1 for a node without a number; without `local`, nodes[i] has the number i, and
// at most `most` nodes get a number. `nodes` has space for every source. Unless `gap` is negative, the
// system is asked to read the drawn sources first, because they may be in a mapped file; see pages.h.
// Returns how many nodes have a number afterwards.
int64_t unimp_sample(int wide_indptr, int wide_source, const void *indptr, const void *source,
                     int32_t *local, int64_t *nodes, int64_t num_targets, int64_t num_nodes,
                     int64_t take, uint64_t seed, int32_t *out_indptr, int64_t *slots,
                     int32_t *out_source, int64_t most, int64_t gap) {
    return with_types(wide_indptr, wide_source, indptr, source, [&](auto *rows, auto *sources) {
        const auto run = [&](auto numbers) {
            return sample(rows, sources, numbers, nodes, num_targets, num_nodes, take, seed,
                          out_indptr, slots, out_source, gap);
        };
        if (local) return run(Array{local});
        try {
            Table table(most);
            for (int64_t i = 0; i < num_nodes; ++i) table[nodes[i]] = int32_t(i);
            return run(std::move(table));
        } catch (const std::bad_alloc &) {
            return int64_t(-1);  // Python raises an error; none may leave this library
        }
    });
}

// Writes the edges among `nodes`. `local` is the position of a node in `nodes`, or −1. `slots` and
// `out_source` have space for all in-edges of the nodes plus one. Returns the number of edges.
int64_t unimp_induce(int wide_indptr, int wide_source, const void *indptr, const void *source,
                     const int32_t *local, const int64_t *nodes, int64_t count, int64_t *out_indptr,
                     int64_t *slots, int32_t *out_source) {
    return with_types(wide_indptr, wide_source, indptr, source, [&](auto *rows, auto *sources) {
        return induce(rows, sources, local, nodes, count, out_indptr, slots, out_source);
    });
}
}
