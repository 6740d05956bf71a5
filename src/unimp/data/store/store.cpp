// The inner loops of building a store: numbers for ids, and the sorting of edges by target. This
// library uses neither vector instructions nor threads: Python threads process several parts of the
// input in parallel.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

namespace {

using std::int32_t;
using std::int64_t;
using std::uint32_t;
using std::uint64_t;

uint64_t mixed(uint64_t a, uint64_t b) {
    const unsigned __int128 product = static_cast<unsigned __int128>(a) * b;
    return uint64_t(product) ^ uint64_t(product >> 64);
}

constexpr uint64_t kFirst = 0x9E3779B97F4A7C15ull, kSecond = 0xD1B54A32D192ED03ull;

uint64_t hash_of(const char *text, int64_t length) {
    uint64_t state = kFirst ^ uint64_t(length);
    uint64_t word;
    for (; length > 8; length -= 8, text += 8) {
        std::memcpy(&word, text, 8);
        state = mixed(state ^ word, kSecond);
    }
    word = 0;
    std::memcpy(&word, text, size_t(length));
    return mixed(mixed(state ^ word, kSecond), kFirst);
}

// Ids that are texts, as Arrow stores them: the bytes of all texts, and where each begins.
struct Texts {
    const char *bytes;
    const int64_t *offsets;
    uint64_t hash(int64_t row) const {
        return hash_of(bytes + offsets[row], offsets[row + 1] - offsets[row]);
    }
    void prefetch(int64_t row) const { __builtin_prefetch(offsets + row); }
    void prefetch_bytes(int64_t row) const { __builtin_prefetch(bytes + offsets[row]); }
    bool equals(int64_t row, const Texts &other, int64_t place) const {
        const int64_t length = offsets[row + 1] - offsets[row];
        return length == other.offsets[place + 1] - other.offsets[place] &&
               std::memcmp(bytes + offsets[row], other.bytes + other.offsets[place],
                           size_t(length)) == 0;
    }
};

struct Integers {
    const int64_t *values;
    uint64_t hash(int64_t row) const {
        return mixed(mixed(uint64_t(values[row]) ^ kFirst, kSecond) ^ kSecond, kFirst);
    }
    void prefetch(int64_t row) const { __builtin_prefetch(values + row); }
    void prefetch_bytes(int64_t) const {}
    bool equals(int64_t row, const Integers &other, int64_t place) const {
        return values[row] == other.values[place];
    }
};

// An open hash table: a slot holds the low half of a hash and the number of an id plus one; 0 is an
// empty slot. The ids themselves stay in their mapped file and decide whether two ids are equal.
struct Slots {
    uint64_t *slots;
    int64_t capacity;
    int64_t partition, partitions;
    bool owns(uint64_t hash) const {
        return partitions == 1 || int64_t(((hash >> 48) * uint64_t(partitions)) >> 16) == partition;
    }
    int64_t begin(uint64_t hash) const {
        return int64_t((((hash >> 16) & 0xFFFFFFFFull) * uint64_t(capacity)) >> 32);
    }
    int64_t next(int64_t place) const { return place + 1 == capacity ? 0 : place + 1; }
};

template <class Ids>
int64_t insert(const Slots &table, const Ids &ids, int64_t count, int64_t *repeated, int64_t most) {
    constexpr int64_t kAhead = 16;
    uint64_t hashes[kAhead];
    int64_t found = 0;
    for (int64_t first = 0; first < count; first += kAhead) {
        const int64_t end = std::min(count - first, kAhead);
        for (int64_t k = 0; k < end; ++k) {
            hashes[k] = ids.hash(first + k);
            __builtin_prefetch(table.slots + table.begin(hashes[k]));
        }
        for (int64_t k = 0; k < end; ++k) {
            if (!table.owns(hashes[k])) continue;
            const uint64_t mark = hashes[k] << 32;
            int64_t place = table.begin(hashes[k]);
            for (;; place = table.next(place)) {
                const uint64_t slot = table.slots[place];
                if (slot == 0) {
                    table.slots[place] = mark | uint64_t(first + k + 1);
                    break;
                }
                const int64_t number = int64_t(slot & 0xFFFFFFFFull) - 1;
                if ((slot ^ mark) >> 32 == 0 && ids.equals(number, ids, first + k)) {
                    if (found < most) {
                        repeated[2 * found] = first + k;
                        repeated[2 * found + 1] = number;
                    }
                    ++found;
                    break;
                }
            }
        }
    }
    return found;
}

// Writes the number of each asked id, or −1; ids of other partitions are left out.
template <class Ids>
void find(const Slots &table, const Ids &ids, const Ids &asked, int64_t count, int32_t *out,
          int64_t stride) {
    constexpr int64_t kAhead = 64;
    uint64_t hashes[kAhead];
    int64_t places[kAhead];
    for (int64_t first = 0; first < count; first += kAhead) {
        const int64_t end = std::min(count - first, kAhead);
        for (int64_t k = 0; k < end; ++k) {
            hashes[k] = asked.hash(first + k);
            places[k] = table.begin(hashes[k]);
            __builtin_prefetch(table.slots + places[k]);
        }
        // The first slot with an equal mark is almost always the right one.
        for (int64_t k = 0; k < end; ++k) {
            const uint64_t mark = hashes[k] << 32;
            uint64_t slot;
            while ((slot = table.slots[places[k]]) != 0 && (slot ^ mark) >> 32 != 0)
                places[k] = table.next(places[k]);
            if (slot != 0) ids.prefetch(int64_t(slot & 0xFFFFFFFFull) - 1);
        }
        for (int64_t k = 0; k < end; ++k) {
            const uint64_t slot = table.slots[places[k]];
            if (slot != 0) ids.prefetch_bytes(int64_t(slot & 0xFFFFFFFFull) - 1);
        }
        for (int64_t k = 0; k < end; ++k) {
            if (!table.owns(hashes[k])) continue;
            const uint64_t mark = hashes[k] << 32;
            int64_t number = -1;
            for (int64_t place = places[k];; place = table.next(place)) {
                const uint64_t slot = table.slots[place];
                if (slot == 0) break;
                const int64_t candidate = int64_t(slot & 0xFFFFFFFFull) - 1;
                if ((slot ^ mark) >> 32 == 0 && ids.equals(candidate, asked, first + k)) {
                    number = candidate;
                    break;
                }
            }
            out[(first + k) * stride] = int32_t(number);
        }
    }
}

struct Edge {
    int32_t source, target;
};

}  // namespace

extern "C" {

// A checksum of the sources, with which the loader detects a library built from other sources.
unsigned unimp_store_sources() { return UNIMP_SOURCES; }

// Whether a text is empty, or might have a space at its begin or end: a control character, or a
// character outside of ASCII.
int unimp_store_untidy(const char *bytes, const int64_t *offsets, int64_t count) {
    for (int64_t k = 0; k < count; ++k) {
        if (offsets[k] == offsets[k + 1]) return 1;
        const unsigned char first = static_cast<unsigned char>(bytes[offsets[k]]);
        const unsigned char last = static_cast<unsigned char>(bytes[offsets[k + 1] - 1]);
        if (first <= 32 || first >= 127 || last <= 32 || last >= 127) return 1;
    }
    return 0;
}

// Inserts all ids of one partition. Returns how many are repeated; the first `most` of them are
// written to `repeated` as pairs (number, number of the equal id before it).
int64_t unimp_store_insert_texts(uint64_t *slots, int64_t capacity, int64_t partition,
                                 int64_t partitions, const char *bytes, const int64_t *offsets,
                                 int64_t count, int64_t *repeated, int64_t most) {
    return insert(Slots{slots, capacity, partition, partitions}, Texts{bytes, offsets}, count,
                  repeated, most);
}

int64_t unimp_store_insert_integers(uint64_t *slots, int64_t capacity, int64_t partition,
                                    int64_t partitions, const int64_t *values, int64_t count,
                                    int64_t *repeated, int64_t most) {
    return insert(Slots{slots, capacity, partition, partitions}, Integers{values}, count, repeated,
                  most);
}

void unimp_store_find_texts(uint64_t *slots, int64_t capacity, int64_t partition,
                            int64_t partitions, const char *bytes, const int64_t *offsets,
                            const char *asked_bytes, const int64_t *asked_offsets, int64_t count,
                            int32_t *out, int64_t stride) {
    find(Slots{slots, capacity, partition, partitions}, Texts{bytes, offsets},
         Texts{asked_bytes, asked_offsets}, count, out, stride);
}

void unimp_store_find_integers(uint64_t *slots, int64_t capacity, int64_t partition,
                               int64_t partitions, const int64_t *values, const int64_t *asked,
                               int64_t count, int32_t *out, int64_t stride) {
    find(Slots{slots, capacity, partition, partitions}, Integers{values}, Integers{asked}, count,
         out, stride);
}

// Adds to counts[target >> shift] for each edge, and for its reverse if `both`. Edges with an
// unknown end (−1) do not count. Returns the number of entries that were counted.
int64_t unimp_store_count(const int32_t *ends, int64_t count, int64_t both, int64_t shift,
                          int64_t *counts) {
    int64_t entries = 0;
    for (int64_t k = 0; k < count; ++k) {
        const int32_t source = ends[2 * k], target = ends[2 * k + 1];
        if (source < 0 || target < 0) continue;
        ++counts[target >> shift];
        ++entries;
        if (both && source != target) {
            ++counts[source >> shift];
            ++entries;
        }
    }
    return entries;
}

// Groups edges (reverse: their reverses, without self-loops) by the bucket of their target;
// bucket_of: of target >> shift. `sizes` receives the number of entries of each bucket, `out` the
// entries bucket after bucket in the order of the input, and `order`, unless it is null, the
// position of each entry in the input.
int64_t unimp_store_group(const int32_t *ends, int64_t count, int64_t reverse, int64_t shift,
                          const int32_t *bucket_of, int64_t num_buckets, int64_t *sizes,
                          int32_t *out, int64_t *order) {
    const int s = reverse ? 1 : 0, t = reverse ? 0 : 1;
    auto is_left_out = [&](int64_t k) {
        return ends[2 * k] < 0 || ends[2 * k + 1] < 0 ||
               (reverse && ends[2 * k] == ends[2 * k + 1]);
    };
    std::fill(sizes, sizes + num_buckets, 0);
    for (int64_t k = 0; k < count; ++k)
        if (!is_left_out(k)) ++sizes[bucket_of[ends[2 * k + t] >> shift]];
    std::vector<int64_t> place(size_t(num_buckets) + 1, 0);
    for (int64_t b = 0; b < num_buckets; ++b) place[size_t(b) + 1] = place[size_t(b)] + sizes[b];
    const int64_t entries = place[size_t(num_buckets)];
    for (int64_t k = 0; k < count; ++k) {
        if (is_left_out(k)) continue;
        const int64_t at = place[size_t(bucket_of[ends[2 * k + t] >> shift])]++;
        out[2 * at] = ends[2 * k + s];
        out[2 * at + 1] = ends[2 * k + t];
        if (order) order[at] = k;
    }
    return entries;
}

// Sorts the edges of a bucket by (target, source). `starts` [targets + 1] receives where the row of
// each target begins. Without `order`, duplicate edges are removed; with it, they stay, in the
// order of the input, and `order` receives the position of each edge in the input. `row_source` has
// space for all edges. Returns the number of edges written.
int64_t unimp_store_sort(const int32_t *edges, int64_t count, int64_t first, int64_t targets,
                         int64_t *starts, int32_t *row_source, int64_t *order) {
    const Edge *all = reinterpret_cast<const Edge *>(edges);
    std::fill(starts, starts + targets + 1, 0);
    for (int64_t k = 0; k < count; ++k) ++starts[all[k].target - first + 1];
    for (int64_t t = 0; t < targets; ++t) starts[t + 1] += starts[t];
    if (order) {
        std::vector<uint64_t> keys(static_cast<size_t>(count));
        std::vector<int64_t> next(starts, starts + targets);
        for (int64_t k = 0; k < count; ++k)
            keys[size_t(next[size_t(all[k].target - first)]++)] =
                uint64_t(uint32_t(all[k].source)) << 32 | uint64_t(uint32_t(k));
        for (int64_t t = 0; t < targets; ++t)
            std::sort(keys.begin() + starts[t], keys.begin() + starts[t + 1]);
        for (int64_t k = 0; k < count; ++k) {
            row_source[k] = int32_t(keys[size_t(k)] >> 32);
            order[k] = int64_t(keys[size_t(k)] & 0xFFFFFFFFull);
        }
        return count;
    }
    // `starts` moves while rows are filled, and is restored afterwards: no second array is needed.
    for (int64_t k = 0; k < count; ++k) row_source[starts[all[k].target - first]++] = all[k].source;
    for (int64_t t = targets; t > 0; --t) starts[t] = starts[t - 1];
    starts[0] = 0;
    int64_t kept = 0, begin = 0;
    for (int64_t t = 0; t < targets; ++t) {
        const int64_t end = starts[t + 1];
        std::sort(row_source + begin, row_source + end);
        starts[t] = kept;
        int32_t last = -1;
        for (int64_t k = begin; k < end; ++k) {
            if (row_source[k] != last) row_source[kept++] = row_source[k];
            last = row_source[kept - 1];
        }
        begin = end;
    }
    starts[targets] = kept;
    return kept;
}
}
