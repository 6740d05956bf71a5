// What Python hands to the native core, and the functions each instruction set provides.
//
// Nothing here knows of torch: plain pointers and sizes, so that one build serves every version.
#pragma once

#include <cstdint>

// One hop's attention: sizes, operands, results. Pointers are to float, or to double if
// `is_double`; indices are int32, or int64 if `is_wide`. Rows of query, key, value and of gradients
// lie `…_stride` elements apart, so that they may be slices of one projection; everything else is
// contiguous. Null: not there, or not asked for.
// If `is_shared`, one row of a source serves all heads as key and as value: key is [S, D], and
// value and grad_value are not there; grad_key is the gradient of that row.
struct Attention {
    int64_t targets, sources, edges;
    int64_t heads, width, edge_width;
    int64_t query_stride, key_stride, value_stride, grad_out_stride;
    int64_t grad_query_stride, grad_key_stride, grad_value_stride;
    int64_t is_double, is_wide, is_shared, threads;
    const void *query, *key, *value;      // [T, H, D], [S, H, D], [S, H, D]
    const void *edge_query, *edge_attr;   // [T, H, d_e], [E, d_e]
    const void *indptr, *source;          // [T+1], [E]
    const void *by_source_indptr, *by_source_target, *by_source_slot;  // [S+1], [E], [E]
    void *out, *edge_mean, *mass;                             // [T, H, D], [T, H, d_e], [T, H]
    void *log_sum;                                            // [T, H], double
    const void *grad_out, *grad_edge_mean, *grad_mass;        // as the three before
    void *grad_query, *grad_key, *grad_value, *grad_edge_query, *grad_edge_attr;
    void *by_target;        // scratch [T, 4H + 2H·padded(d_e)]: what the pass by source needs of a target
    void *score_grad;       // scratch [E, H]: ds
    void *weight;           // scratch [E, H]: a; null where edge features take no gradient
    double scale;           // of the scores
    double dropout;
    int64_t drop_below;     // a weight is dropped if its 32 random bits are below this; 0: none is
    int64_t seed;
};

// What a target keeps of itself, mixed with its message, and the norm after it; the equations are
// in ops/residual.py. Rows are [T, C]; of the vectors each may be null, as in the equations.
struct Residual {
    int64_t rows, width, message_stride, kept_stride, grad_stride, grad_kept_stride;
    int64_t is_double, relu, threads;
    const void *message, *kept;
    const void *on_kept, *on_message, *gate_bias, *weight, *bias;
    void *out, *beta, *mean, *rstd;
    const void *grad;
    void *grad_message, *grad_kept;
    void *parts;  // [chunks, 4C + 1]: each chunk's sums of da, db, dw, dd and dc
    double eps;
};

// Neighbor sampling and induced subgraphs are in sampling.cpp; they need no vector instructions.

#define UNIMP_DECLARE(isa)                            \
    void attention_forward_##isa(const Attention &);  \
    void attention_backward_##isa(const Attention &); \
    void residual_forward_##isa(const Residual &);    \
    void residual_backward_##isa(const Residual &);

UNIMP_DECLARE(avx512)
UNIMP_DECLARE(avx2)
UNIMP_DECLARE(baseline)
