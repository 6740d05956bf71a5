// Reading ahead in mapped files: the system is asked for all pages that a batch needs, in the order
// of the file, before the batch reads them. It then reads many pages at the same time, while a thread
// that touches one page after the other waits for each of them.

#include "pages.h"

#include <algorithm>
#include <new>
#include <vector>

#ifdef __linux__
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>
#endif

#ifdef __linux__
namespace {

constexpr int64_t kProbes = 128;  // rows that are asked for first

struct Pages {
    int64_t begin, end;  // page numbers
};

// The number of blocks that this thread has requested from disks.
int64_t blocks_read() {
    struct rusage used;
    return getrusage(RUSAGE_THREAD, &used) ? 0 : int64_t(used.ru_inblock);
}

void ask_for(Pages pages, int64_t page_bytes) {
    void *address = reinterpret_cast<void *>(pages.begin * page_bytes);
    // A failure has no effect on the result: the pages are read when they are used.
    (void)madvise(address, size_t((pages.end - pages.begin) * page_bytes), MADV_WILLNEED);
}

}  // namespace
#endif

int64_t unimp_read_ahead(const void *base, int64_t row_bytes, const int64_t *rows, int64_t count,
                         int64_t gap) {
#ifdef __linux__
    if (count <= 0 || row_bytes <= 0) return 0;
    const int64_t page_bytes = sysconf(_SC_PAGESIZE), start = int64_t(uintptr_t(base));
    const auto pages_of = [&](int64_t row) {
        const int64_t begin = start + row * row_bytes;
        return Pages{begin / page_bytes, (begin + row_bytes - 1) / page_bytes + 1};
    };
    // If a sample of the rows is in memory, nearly all rows are, and sorting them would only take
    // time. This is also the case for arrays that are not mapped from a file.
    const int64_t before = blocks_read(), step = std::max<int64_t>(1, count / kProbes);
    for (int64_t i = 0; i < count; i += step) ask_for(pages_of(rows[i]), page_bytes);
    if (blocks_read() == before) return 0;
    try {
        std::vector<int64_t> sorted(rows, rows + count);
        std::sort(sorted.begin(), sorted.end());
        int64_t ranges = 0;
        Pages open = pages_of(sorted[0]);
        for (const int64_t row : sorted) {
            const Pages next = pages_of(row);
            if (next.begin > open.end + gap) {
                ask_for(open, page_bytes);
                ++ranges;
                open = next;
            }
            open.end = std::max(open.end, next.end);
        }
        ask_for(open, page_bytes);
        return ranges + 1;
    } catch (const std::bad_alloc &) {
        return 0;  // the pages are read when they are used
    }
#else
    (void)base, (void)row_bytes, (void)rows, (void)count, (void)gap;
    return 0;
#endif
}
