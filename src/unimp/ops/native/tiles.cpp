// The in-edges of a chunk of targets, block of sources after block. The sources of a target are
// sorted, so one cursor per target is enough, and each edge is read once.

#include <cstdint>

namespace {

template <class I>
int64_t take(const int64_t *indptr, const I *source, int64_t targets, int64_t first, int64_t stop,
             int64_t most, int64_t *cursor, I *out_indptr, I *out_source, int64_t *out_slot) {
    int64_t count = 0;
    out_indptr[0] = 0;
    for (int64_t i = 0; i < targets; ++i) {
        int64_t slot = cursor[i];
        const int64_t end = indptr[i + 1];
        for (; slot < end && source[slot] < stop && count < most; ++slot, ++count) {
            out_source[count] = I(source[slot] - first);
            if (out_slot) out_slot[count] = slot;
        }
        cursor[i] = slot;
        out_indptr[i + 1] = I(count);
    }
    return count;
}

}  // namespace

extern "C" {

// Takes at most `most` in-edges of some targets from the sources first … stop, and moves the cursor
// of each target, a slot, behind them. `indptr` has one more entry than there are targets. Returns the
// number of edges; if it is `most`, there may be more. `out_slot` may be null.
int64_t unimp_take(int wide, const int64_t *indptr, const void *source, int64_t targets, int64_t first,
                   int64_t stop, int64_t most, int64_t *cursor, void *out_indptr, void *out_source,
                   int64_t *out_slot) {
    if (wide)
        return take(indptr, static_cast<const int64_t *>(source), targets, first, stop, most, cursor,
                    static_cast<int64_t *>(out_indptr), static_cast<int64_t *>(out_source), out_slot);
    return take(indptr, static_cast<const int32_t *>(source), targets, first, stop, most, cursor,
                static_cast<int32_t *>(out_indptr), static_cast<int32_t *>(out_source), out_slot);
}
}
