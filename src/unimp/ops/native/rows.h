// Divides compressed rows among threads.
#pragma once

#include <cstdint>

// The number of entries that are processed together, and how many entries ahead rows are prefetched. Of
// 4, 8 and 16, sixteen was fastest on an arxiv-sized graph.
constexpr int kBlock = 16;

// Returns the first row of a part. All parts have about the same cost; the cost of a row is the number of
// its entries plus a constant.
template <class I>
static int64_t cut(const I *indptr, int64_t rows, int64_t part, int64_t parts) {
    const int64_t all = (int64_t(indptr[rows]) + 4 * rows) / parts * part;
    if (part == parts) return rows;
    int64_t low = 0, high = rows;
    while (low < high) {
        const int64_t middle = (low + high) / 2;
        if (int64_t(indptr[middle]) + 4 * middle < all)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

// Calls work(begin, end, scratch) for ranges of rows, several per thread, because the cores of a shared
// machine are not equally fast. `scratch` has space for `scratch_size` numbers of type T.
template <class T, class I, class Work>
static void over_rows(const void *indptr, int64_t rows, int64_t threads, int64_t scratch_size, Work work) {
    const I *starts = static_cast<const I *>(indptr);
    const int64_t parts = rows < 1024 ? 1 : threads * 16;
#pragma omp parallel num_threads(threads) if (parts > 1)
    {
        T *scratch = new T[scratch_size]();
#pragma omp for schedule(dynamic)
        for (int64_t part = 0; part < parts; ++part) {
            const int64_t begin = cut(starts, rows, part, parts);
            const int64_t end = cut(starts, rows, part + 1, parts);
            if (begin < end) work(begin, end, scratch);
        }
        delete[] scratch;
    }
}
