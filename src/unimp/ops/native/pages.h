// Asks the system to read rows of an array that is mapped from a file.
#pragma once

#include <cstdint>

extern "C" {
// Row r begins r · row_bytes after `base`. If at most `gap` pages are between two rows, they are read
// as well, so that ranges are fewer and longer. Returns the number of ranges that were asked for;
// 0 if the rows are in memory already. The content of memory does not change.
int64_t unimp_read_ahead(const void *base, int64_t row_bytes, const int64_t *rows, int64_t count,
                         int64_t gap);
}
