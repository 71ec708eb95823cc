// Forward passes of Llama-like decoders over weights of 4, 8, 16 or 32 bits, for processors.
//
// Nothing here depends on how many rows are computed at once: a row's sums are added in one order, whatever its
// neighbours. A node of a tree so gets the very bits that it would get in a text decoded token by token.

#include <new>

#include "abi.h"
#include "attention.h"
#include "draft.h"
#include "layers.h"
#include "lstm.h"
#include "products.h"
#include "argmax.h"
#include "slots.h"
#include "thread_pool.h"
#include "topk.h"
#include "top_chunks.h"

// out [M, outputs] = x [M, inputs] W^T + bias. Returns 0, or 1 where there is no memory.
extern "C" int specframe_multiply(const Weight* w, const float* x, int64_t rows, float* out) try {
  Codes codes(rows, w->inputs, w->bits);
  ThreadGroup group(wanted_threads());
  ThreadPool::run(group, [&](Worker& worker) {
    worker.share(rows, [&](int64_t row) { codes.set(row, x + row * w->inputs, w->inputs); });
    multiply(worker, *w, nullptr, codes, rows, out, w->outputs, false);
  });
  return 0;
} catch (const std::bad_alloc&) {
  return 1;
}

// The `count` largest of each row of logits [M, width], largest first and of equal ones the earlier first, as
// log-probabilities, and the columns where they stand; `count` is `width` at most.
extern "C" void specframe_rank(const float* logits, int64_t rows, int64_t width, int64_t count, float* values, int64_t* columns) {
  for (int64_t row = 0; row < rows; ++row)
    rank(logits + row * width, width, count, values + row * count, columns + row * count);
}

// The root mean square norms of rows, [M, width], as modules of bfloat16 (`halves`) or float32 round them. Row i has weight
// i % kinds of [kinds, width].
extern "C" void specframe_normalize(const float* from, const float* weights, float epsilon, int64_t rows, int64_t width,
                                    int64_t kinds, int64_t halves, float* to) {
  const auto round = [&](float value) { return halves ? widen(narrow(value)) : value; };
  for (int64_t row = 0; row < rows; ++row, from += width, to += width) {
    Lane squares = {};
    for (int64_t i = 0; i < width; i += LANE) {
      const Lane part = *reinterpret_cast<const Lane*>(from + i);
      squares += part * part;
    }
    const float factor = 1.f / std::sqrt(sum(squares) / width + epsilon);
    const float* weight = weights + row % kinds * width;
    for (int64_t i = 0; i < width; ++i) to[i] = round(round(from[i] * factor) * weight[i]);
  }
}
