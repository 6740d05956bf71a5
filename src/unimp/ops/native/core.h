// The arguments that Python passes to the native core, and the functions of each instruction set.
//
// All arguments are plain pointers and sizes, so that one build works with every version of torch.
#pragma once

#include <cstdint>

// The attention of one hop: sizes, operands and results. Pointers are to float, or to double if
// `is_double`. If `is_bf16`, query, key, value, out and their gradients are bf16. Indices are int32, or int64 if `is_wide`. Rows of query, key, value and their gradients
// have a distance of `…_stride` elements, so that they can be slices of one projection. Everything
// else is contiguous. A null pointer means that a tensor does not exist or was not requested.
// If `is_shared`, one row of a source is key and value of all heads: key is [S, D], value and
// grad_value are null, and grad_key is the gradient of that row.
struct Attention {
    int64_t targets, sources, edges;
    int64_t heads, width, edge_width;
    int64_t query_stride, key_stride, value_stride, grad_out_stride;
    int64_t grad_query_stride, grad_key_stride, grad_value_stride;
    int64_t is_double, is_bf16, is_wide, is_shared, threads;
    const void *query, *key, *value;      // [T, H, D], [S, H, D], [S, H, D]
    const void *edge_query, *edge_attr;   // [T, H, d_e], [E, d_e]
    const void *indptr, *source;          // [T+1], [E]
    const void *by_source_indptr, *by_source_target, *by_source_slot;  // [S+1], [E], [E]
    const int64_t *numbers;  // [E], from which dropout draws; null: the slots
    void *out, *edge_mean, *mass;                             // [T, H, D], [T, H, d_e], [T, H]
    void *log_sum;                                            // [T, H], double
    const void *grad_out, *grad_edge_mean, *grad_mass;        // as the three above
    void *grad_query, *grad_key, *grad_value, *grad_edge_query, *grad_edge_attr;
    void *by_target;        // scratch [T, 4H + 2H·padded(d_e)]: numbers of a target for the pass by source
    void *score_grad;       // scratch [E, H]: ds
    void *weight;           // scratch [E, H]: a; null if edge features take no gradient
    double scale;           // of the scores
    double dropout;
    int64_t drop_below;     // a weight is dropped if its 32 random bits are below this; 0: no dropout
    int64_t seed;
};

// The residual step with the norm after it; see ops/residual.py for the equations. Rows are [T, C].
// Each vector may be null, as in the equations. If `is_bf16`, message, kept, out, grad and their
// gradients are bf16; everything else is float, or double if `is_double`.
struct Residual {
    int64_t rows, width, message_stride, kept_stride, grad_stride, grad_kept_stride;
    int64_t is_double, is_bf16, relu, threads;
    const void *message, *kept;
    const void *on_kept, *on_message, *gate_bias, *weight, *bias;
    void *out, *beta, *mean, *rstd;
    const void *grad;
    void *grad_message, *grad_kept;
    void *parts;  // [chunks, 4C + 1]: the sums da, db, dw, dd and dc of each chunk
    double eps;
};

// Dropout of `count` numbers of x, or of their gradients: out = word ≥ least ? factor · x : 0.
struct Dropout {
    int64_t count, least, is_double, is_bf16, threads;
    const void *x, *words;  // words: int16
    void *out;
    double factor;
};

// Weighted sums over the entries of compressed rows. By row: the sum of row i and head h is
// row_factor[i] Σ_k weight[slot[k], h] column_factor[column[k]] dense[column[k], h] over the entries k of
// the row, and entry k has slot k if `slot` is null. By column: the sum of column c is Σ_k weight[k]
// dense[row of k] over its entries; there is one head, and the other arguments are null. By row,
// weights and factors that are null are 1. If `is_bf16`, dense and out are bf16 (by row only); everything else is
// float, or double if `is_double`.
struct Sums {
    int64_t rows, columns, entries, heads, width, dense_stride;
    int64_t is_double, is_bf16, is_wide, threads;
    const void *indptr, *column, *slot;      // [rows+1], [entries], [entries]
    const void *weight;                      // [slots, H]
    const void *row_factor, *column_factor;  // [rows], [columns]
    const void *dense;                       // [columns, H, D]; by column: [rows, D]
    void *out;                               // [rows, H, D]; by column: [columns, D]
};

// Neighbor sampling and induced subgraphs are in sampling.cpp; they use no vector instructions.

#define UNIMP_DECLARE(isa)                            \
    void attention_forward_##isa(const Attention &);  \
    void attention_backward_##isa(const Attention &); \
    void residual_forward_##isa(const Residual &);    \
    void residual_backward_##isa(const Residual &);   \
    void dropout_##isa(const Dropout &);              \
    void sum_rows_##isa(const Sums &);                \
    void sum_columns_##isa(const Sums &);

UNIMP_DECLARE(avx512)
UNIMP_DECLARE(avx2)
UNIMP_DECLARE(baseline)
