/* The border between Python and C++: every struct and function that both sides know, in plain C.
 *
 * abi.py makes its ctypes structures and signatures from this text, and C++ includes it. Python then compares sizes and offsets
 * with those that the compiler has given, before the first call. It reads a field as `type name, *name;`, one type a line.
 */
#ifndef SPECFRAME_ABI_H
#define SPECFRAME_ABI_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A matrix in tiles of 16 outputs and blocks of 32 inputs. */
typedef struct Weight {
  const uint8_t* data;
  const float* bias; /* or null */
  int64_t outputs, inputs, bits;
} Weight;

/* The weights of a decoder layer. */
typedef struct Layer {
  const float *attention_norm, *mlp_norm, *query_norm, *key_norm; /* the last two may be null */
  const float* token_norm; /* of the embeddings before the hidden state, or null */
  int64_t normed_residual; /* whether the residual starts at the normed state */
  Weight qkv, output, gate_up, down;
} Layer;

typedef struct DecoderSizes {
  int64_t layers, width, heads, kv_heads, head_size, rotary, mlp;
  float epsilon, scale;
} DecoderSizes;

/* The rows of one forward pass, and their slots in the cache.
 *
 * A node sees the slots below its row's `length` and, from `base` on, the nodes that `sees` has; or, without `sees`, the slots
 * that `visible` has, and its own keys and values go to its place. Where slots are listed, it sees those up to the first -1 and,
 * from `base` on, the slots that `visible` has, [B, N, width - base]. */
typedef struct Batch {
  int64_t rows, nodes;         /* B, N: B * N rows of `hidden` */
  int64_t first, width;        /* the cache's row of the first, and the first slot that no node sees */
  int64_t cache_rows, slots;   /* the cache is [2 * layers, cache_rows, kv_heads, slots, head_size] */
  int64_t base;                /* the slot of the first node */
  const uint8_t* valid;        /* [B, N], the nodes that are computed: `hidden` has a row for each of them; null: all */
  const uint8_t* sees;         /* [B, N, N], or null */
  const int64_t* length;       /* [B], slots that are committed */
  const uint8_t* visible;      /* [B, N, width] */
  const int64_t* places;       /* [B, N] */
  const int64_t* positions;    /* [B, N] */
  const float *cosine, *sine;  /* [.., rotary / 2], of every position */
  const float* embeddings;     /* [B * N, width] before the hidden state in the attention's input, as in EAGLE-3, or null */
  const int64_t* listed;       /* [list_layers, B, list_heads, list_slots], or null */
  int64_t list_layers, list_heads, list_slots; /* of layers and heads 1 where the lists of all are the same */
  int64_t tap_bits;            /* of a number in the copies of layers' outputs: 32 or 16 */
  float* const* queries;       /* [layers], where a layer's rotated queries are copied to, [B * N, heads * head_size], or null */

  int64_t bits;                /* of a number in the cache: 32, 16 (bfloat16) or 8, split in halves */
  int64_t recent, upper;       /* of 8 bits: room for whole numbers, and whether the upper halves are read alone */
  const uint8_t* codes;        /* [2, 2 * layers, cache_rows, kv_heads, slots, head_size / 2]: upper halves, lower halves */
  const float* key_scales;     /* [layers, cache_rows, kv_heads, slots / SPAN, 2, head_size] */
  const float* value_scales;   /* [layers, cache_rows, kv_heads, slots, 2] */
} Batch;

/* A layer of an LSTM: the four gates' maps (input, forget, content, output) of its input and of its hidden state. */
typedef struct Cell {
  Weight into, back;
} Cell;

/* A drafter's modules, in the order in which they run. */
typedef struct Network {
  DecoderSizes shape;      /* of its decoder layers */
  const Layer* layers;
  int64_t block;           /* K, the pairs that are read at once, and the levels that a pass proposes */
  Weight entry;            /* of a pair's A features side by side, [A D] -> [D]; without outputs: it has one, as it is */
  Weight fusion;           /* of a pair, [2 D] -> [D]; or, without outputs, */
  const Cell* cells;       /* an LSTM over pairs, [2 D] -> [D]; or, null, the first layer reads both parts side by side */
  int64_t recurrent;       /* the LSTM's layers */
  const float* norm;       /* before the head, or null */
  int64_t feeds_normed;    /* whether the state that is fed back has passed that norm */
  Weight head;
  const void* embeddings;  /* [head.outputs, D] of the tokens that are drafted */
  const int64_t* support;  /* [head.outputs], these tokens; null: the columns themselves */
  int64_t halves;          /* whether embeddings, pairs and all values between modules are bfloat16, else float32 */
} Network;

/* The rows of a drafter's session. */
typedef struct SessionRows {
  int64_t rows, cache_rows, slots; /* B; the cache is [2 * layers, cache_rows, kv_heads, slots, head_size] */
  float* cache;
  const float *cosine, *sine;      /* [.., rotary / 2], of every position */
  const int64_t* counts;           /* [B], pairs of each, the new ones included */
  float* outputs;                  /* [B, K, D], of the layers at each row's last K pairs */
  float* states;                   /* [B, recurrent, 2, D], of the LSTM after them */
  float* tail;                     /* [B, K - 1, D], the LSTM's outputs at the last K - 1 pairs */
  int64_t shift;                   /* a row's pairs begin at this slot */
  const int64_t* roots;            /* [B], the last committed tokens */
  int64_t sinks, recent;           /* a row's first and its newest pairs, which are seen */
} SessionRows;

/* Newly committed pairs, of the rows from `first` on. */
typedef struct Pairs {
  int64_t first, most;         /* rows before the first have none; none has more than the most */
  const int64_t* fresh;        /* [B - first], how many of the most a row has */
  const void* embeddings;      /* [B - first, most, D], of their tokens; or, with tokens, the table [V, D] of all */
  const int64_t* tokens;       /* [B - first, most], or null */
  int64_t taps, nodes;         /* the number of kinds of the target's features: one, or as many as `entry` takes; and N */
  const void* const* features; /* [taps], of [B - first, nodes, D] each */
  const int64_t* kept;         /* [B - first, most], the nodes whose features are the pairs'; null: the first ones */
} Pairs;

/* A beam search, with the costs of scoring nodes of each row; the unit is a token's time without drafts. */
typedef struct Search {
  int64_t depth, width, nodes; /* the root counts as a node */
  double gain;                 /* a level that adds no more expected tokens than this is the last */
  const double* powers;        /* [depth], of the laws, or null */
  const double* scores;        /* [taken + nodes + 2], or null: everything pays */
  double level;                /* the cost of a forward pass of the drafter */
  int64_t taken, together;     /* nodes that are scored anyway; whether rows choose together */
  const double* spread;        /* [B * nodes + 1], of nodes added in any rows, which have then numbers of their own; or null */
} Search;

/* The finished trees, with N of at most `nodes` nodes each. */
typedef struct Trees {
  int64_t* packed;               /* [5, B, N]: tokens, parents, valid, draws and rows of q; all nodes are `top` */
  int64_t nodes, levels, passes; /* N, and the number of forward passes */
} Trees;

/* An LM head with its copy in 8 bits, and how far products with the copy may be off. */
typedef struct BoundedWeight {
  Weight exact, copy;       /* without a bias */
  const float *lost, *kept; /* [tiles * 16]: |w - c| and |c|, with what the sums of floats may be off by */
} BoundedWeight;

/* Input and output of a pass that returns only the most likely token after every node. */
typedef struct GreedyChoice {
  const void* table;      /* [V, D], the embeddings */
  int64_t known;          /* V */
  const int64_t* tokens;  /* [M] */
  const int64_t* parents; /* [M], earlier nodes of the row; the root's is not read */
  const uint8_t* valid;   /* [M] */
  int64_t positions;      /* of the table of angles and of the text: a node after the last stands there */
  int64_t halves;         /* whether embeddings and `last` are bfloat16, else float32 */
  const BoundedWeight* head;
  void* last;             /* [M, D], the states after the final norm */
  int64_t* best;          /* [M] */
  int64_t levels;         /* A, no node is deeper */
  int64_t* verdict;       /* [B, 2 (A + 1) + 3] as `Verdict.packed` has it; 0 tokens where one of them has no probability */
} GreedyChoice;

/* The chunks of texts that get the most attention mass. A row's queries are those of its last `asked` steps, and its first
 * `ends` chunks compete; the first of them is always among the best. */
typedef struct TopChunks {
  int64_t layers, rows, heads, sharing, steps, size; /* heads of keys, and how many heads of queries share each */
  int64_t slots, first, tiles;                       /* rows of the chunks, the one of the first row, and tiles of a row */
  int64_t count;                                     /* chunks wanted */
  const float* queries;                              /* [layers, rows, heads * sharing, steps, size] */
  const uint8_t* chunks;       /* [layers, slots, heads, tiles, size * 16] of bfloat16, as weights are */
  const int64_t *asked, *ends; /* [rows] */
  int64_t* best;               /* [layers, rows, heads, count], the best first, then zeros */
} TopChunks;

/* A function that returns int returns 0, 1 where there is no memory, or 2 where a token or a depth is out of bounds. */

/* out [M, outputs] = x [M, inputs] W^T + bias. */
int specframe_multiply(const Weight* w, const float* x, int64_t rows, float* out);

/* The `count` largest of each row of logits [M, width], largest first and of equal ones the earlier first, as
 * log-probabilities, and their columns; `count` is `width` at most. */
void specframe_rank(const float* logits, int64_t rows, int64_t width, int64_t count, float* values, int64_t* columns);

/* The root mean square norms of rows, [M, width], as modules of bfloat16 (`halves`) or float32 round them. Row i has weight
 * i % kinds of [kinds, width]. */
void specframe_normalize(const float* from, const float* weights, float epsilon, int64_t rows, int64_t width, int64_t kinds,
                         int64_t halves, float* to);

/* Runs the layers over `hidden` [M, width], in place, and writes keys and values into the cache. `ending` is the final norm's
 * weight, or null: without that norm. `taps` [layers] are where a layer's output is copied to, [M, width] each, or null.
 * `runs` [layers] has bits for the parts of a layer that run, its attention (1) and its MLP (2); null: all of all.
 * Without memory nothing has been written. */
int specframe_decode(const DecoderSizes* shape, const Layer* layers, const Batch* batch, void* cache, float* hidden,
                     const float* ending, void* const* taps, const uint8_t* runs);

/* The pass of `specframe_decode` over whole trees, from tokens to their most likely successors. */
int specframe_choose(const DecoderSizes* shape, const Layer* layers, const Batch* batch, void* cache, const float* ending,
                     void* const* taps, const GreedyChoice* choice);

/* out [rows, steps, H] from x [rows, steps, I]; `states` [rows, layers, 2, H], hidden state and cell, move on. With `halves`
 * every operation's result is rounded to bfloat16. */
int specframe_recur(const Cell* cells, int64_t layers, int64_t rows, int64_t steps, const float* x, float* states,
                    int64_t halves, float* out);

/* Appends new pairs, or none (null), and grows trees below the roots. */
int specframe_draft(const Network* network, const SessionRows* rows, const Pairs* pairs, const Search* search, Trees* out);

/* Writes the best chunks. */
int specframe_top_chunks(const TopChunks* wanted);

/* Writes a copy of a weight in 8 bits, in blocks as GGUF's Q8_0 has them, and of each output the squares of the norms |w - c|,
 * |w| and |c|, and the largest scale: [4, tiles * 16]. */
void specframe_copy(const Weight* exact, uint8_t* copy, double* norms);

/* `best` [M] is the first largest output of each row x [M, inputs], or -1 where that is not a number. */
int specframe_argmax(const BoundedWeight* head, const float* x, int64_t rows, int64_t* best);

/* Copies slots of planes and heads, given the bytes from one to the next, all reads of a head before its writes. Without
 * memory nothing has been changed. */
int specframe_move(char* planes, int64_t many, int64_t plane, int64_t heads, int64_t head, int64_t slot, int64_t count,
                   const int64_t* from, const int64_t* to);

#ifdef __cplusplus
}
#endif

#endif
