// Asks the system to read rows of an array that is mapped from a file.
#pragma once

#include <cstdint>

extern "C" {
// Row r begins r · row_bytes after `base`. At most `gap` pages between two rows are read as well, so
// that fewer and longer ranges are read. Returns the number of ranges of pages that were asked for;
// 0 if the rows are in memory already. The content of memory does not change.
int64_t unimp_read_ahead(const void *base, int64_t row_bytes, const int64_t *rows, int64_t count,
                         int64_t gap);
}
