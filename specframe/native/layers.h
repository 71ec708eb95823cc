// The layers of a decoder: norms, attention and MLP over the rows of one pass.

#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

#include "abi.h"
#include "attention.h"
#include "memory.h"
#include "products.h"
#include "thread_pool.h"
#include "visibility.h"

namespace {

constexpr int64_t DEEP = 8;  // layers from which on a pass takes longer than the start of a thread

// Without a weight nothing is normalized; a width is a multiple of 16.
inline void normalize(const float* from, const float* weight, float epsilon, int64_t width, float* to) {
  if (!weight) {
    std::memcpy(to, from, width * sizeof(float));
    return;
  }
  Lane squares = {};
  for (int64_t i = 0; i < width; i += LANE) {
    const Lane part = *reinterpret_cast<const Lane*>(from + i);
    squares += part * part;
  }
  const float factor = 1.f / std::sqrt(sum(squares) / width + epsilon);
  for (int64_t i = 0; i < width; ++i) to[i] = from[i] * factor * weight[i];
}

inline void rotate(float* head, const float* cosine, const float* sine, int64_t rotary) {
  const int64_t half = rotary / 2;
  for (int64_t i = 0; i < half; ++i) {
    const float a = head[i], b = head[half + i];
    head[i] = a * cosine[i] - b * sine[i];
    head[half + i] = b * cosine[i] + a * sine[i];
  }
}

}  // namespace

// Runs the layers over `hidden` [M, width], in place, and writes keys and values into the cache. `ending` is the final norm's
// weight, or null: without that norm. `taps` [layers] are where a layer's output is copied to, [M, width] each, or null.
// `runs` [layers] says what of a layer runs, its attention (1), its MLP (2), or both; null: all of all.
// Returns 0, or 1 where there is no memory; nothing has then been written.
extern "C" int specframe_decode(const DecoderSizes* shape, const Layer* layers, const Batch* batch, void* cache, float* hidden,
                                const float* ending, void* const* taps, const uint8_t* runs) try {
  const DecoderSizes s = *shape;
  const Batch b = *batch;
  const int64_t all = b.rows * b.nodes, queries = s.heads * s.head_size, keys = s.kv_heads * s.head_size;
  std::vector<int64_t> nodes, row_of(all, -1);  // the nodes that are computed, and the row of `hidden` of each
  for (int64_t node = 0; node < all; ++node)
    if (!b.valid || b.valid[node]) {
      row_of[node] = static_cast<int64_t>(nodes.size());
      nodes.push_back(node);
    }
  const int64_t rows = static_cast<int64_t>(nodes.size());
  const int64_t line = queries + 2 * keys, most = b.width + b.list_slots + RECENT, wide = std::max(layers[0].qkv.inputs, queries);
  const auto with_memory = [&](int64_t layer, int64_t row, int64_t head, auto use) {
    const int64_t all = b.cache_rows * s.kv_heads, at = row * s.kv_heads + head, first = 2 * layer * all + at;
    const auto of = [&](auto* numbers) {
      const int64_t each = b.slots * s.head_size;
      use(Numbers<std::remove_pointer_t<decltype(numbers)>>{numbers + first * each, numbers + (first + all) * each, s.head_size});
    };
    if (b.bits == 32) return of(static_cast<float*>(cache));
    if (b.bits == 16) return of(static_cast<uint16_t*>(cache));
    const int64_t half = b.slots * s.head_size / 2, lower = 2 * s.layers * all * half, each = b.recent * s.head_size;
    const uint8_t *keys = b.codes + first * half, *values = keys + all * half;
    float* whole = static_cast<float*>(cache) + first * each;
    use(SplitInt8{keys, keys + lower, values, values + lower, b.key_scales + (layer * all + at) * b.slots / SPAN * 2 * s.head_size,
               b.value_scales + (layer * all + at) * b.slots * 2, whole, whole + all * each, s.head_size, b.slots, b.upper != 0});
  };
  Codes codes(rows, wide, layers[0].qkv.bits), inner(rows, s.mlp, layers[0].qkv.bits);
  std::unique_ptr<float[]> qkv(new float[rows * line]), attended(new float[rows * queries]);
  const int64_t sharing = s.heads / s.kv_heads, asking = b.nodes * sharing;  // queries of a key, and of a row's nodes
  std::vector<int64_t> asked(b.rows);  // of these, up to the row's last node that is computed
  for (int64_t node : nodes) asked[node / b.nodes] = (node % b.nodes + 1) * sharing;
  const int threads = wanted_threads();  // as many as PyTorch's
  int64_t together = LANE;
  while (together > 1 && b.rows * s.kv_heads * ((asking + together - 1) / together) < threads) together /= 2;
  const int64_t groups = (asking + together - 1) / together;  // of each row
  std::vector<View> views(list_count(b) * b.rows * groups);
  // Of a thread: an attention's weights, a row's values, and products with a gate.
  const int64_t each = (most + 2 * LANE) * LANE + wide + 4 * TILE * rows;
  const std::unique_ptr<float[]> scratch(new float[threads * each]);
  if (threads > 1 && s.layers >= DEEP) end_busy_threads();
  ThreadGroup group(threads);
  std::atomic<bool> full{false};  // no exception leaves a thread of the pool
  ThreadPool::run(group, [&](Worker& worker) {
    float* const shares = scratch.get() + worker.id * each;
    float *const values = shares + (most + 2 * LANE) * LANE, *const room = values + wide;
    worker.share(list_count(b) * b.rows * groups, [&](int64_t at) {
      if (full) return;
      const int64_t list = at / (b.rows * groups), row = at / groups % b.rows, first = at % groups * together;
      const int64_t count = std::min(together, asked[row] - first);
      try {
        if (count > 0) views[at] = view_of(b, list, row, first, count, sharing);
      } catch (const std::bad_alloc&) {
        full = true;
      }
    });
    for (int64_t l = 0; l < (full ? 0 : s.layers); ++l) {
      const Layer& layer = layers[l];
      if (!runs || runs[l] & 1) {
        worker.share(rows, [&](int64_t row) {
          float *state = hidden + row * s.width, *normed = values + (b.embeddings ? s.width : 0);
          normalize(state, layer.attention_norm, s.epsilon, s.width, normed);
          if (b.embeddings) normalize(b.embeddings + nodes[row] * s.width, layer.token_norm, s.epsilon, s.width, values);
          if (layer.normed_residual) std::memcpy(state, normed, s.width * sizeof(float));
          codes.set(row, values, layer.qkv.inputs);
        });
        multiply(worker, layer.qkv, &layer.output, codes, rows, qkv.get(), line, false);
        worker.share(rows, [&](int64_t row) {
          float* at = qkv.get() + row * line;
          const int64_t node = nodes[row], first = b.first + node / b.nodes;
          const int64_t slot = b.sees ? b.base + node % b.nodes : b.places[node], turn = b.positions[node] * (s.rotary / 2);
          for (int64_t h = 0; h < s.heads + s.kv_heads; ++h) {
            float* head = at + h * s.head_size;
            const float* norm = h < s.heads ? layer.query_norm : layer.key_norm;
            if (norm) normalize(head, norm, s.epsilon, s.head_size, head);
            rotate(head, b.cosine + turn, b.sine + turn, s.rotary);
          }
          if (b.queries && b.queries[l]) std::memcpy(b.queries[l] + node * queries, at, queries * sizeof(float));
          for (int64_t h = 0; h < s.kv_heads; ++h) {
            const float* key = at + queries + h * s.head_size;
            with_memory(l, first, h, [&](const auto& memory) { memory.put(own_slot(b, slot), key, key + keys); });
          }
        });
        worker.share(b.rows * s.kv_heads * groups, [&](int64_t item) {
          const int64_t at = item % (b.rows * groups), row = at / groups, h = item / (b.rows * groups);
          const int64_t first = at % groups * together, count = std::min(together, asked[row] - first);
          if (count <= 0) return;
          const float* query[LANE];
          float* out[LANE];
          for (int64_t q = 0; q < count; ++q) {
            const int64_t node = row_of[row * b.nodes + (first + q) / sharing], head = h * sharing + (first + q) % sharing;
            query[q] = qkv.get() + std::max<int64_t>(node, 0) * line + head * s.head_size;
            out[q] = node < 0 ? values : attended.get() + node * queries + head * s.head_size;  // there nothing reads it
          }
          const View& view = views[list_of(b, l, h) * b.rows * groups + at];
          with_memory(l, b.first + row, h, [&](const auto& memory) { attend(query, out, count, s.scale, memory, view, shares); });
        });
        worker.share(rows, [&](int64_t row) {
          codes.set(row, attended.get() + row * queries, queries);
        });
        multiply(worker, layer.output, &layer.gate_up, codes, rows, hidden, s.width, true);
      }
      if (!runs || runs[l] & 2) {
        worker.share(rows, [&](int64_t row) {
          normalize(hidden + row * s.width, layer.mlp_norm, s.epsilon, s.width, values);
          codes.set(row, values, s.width);
        });
        gate(worker, layer.gate_up, layer.down, codes, rows, inner, room);
        multiply(worker, layer.down, l + 1 < s.layers ? &layers[l + 1].qkv : nullptr, inner, rows, hidden, s.width, true);
      }
      if (taps[l])
        worker.share(rows, [&](int64_t row) {
          const float* from = hidden + row * s.width;
          const int64_t to = nodes[row] * s.width;
          if (b.tap_bits == 16)
            for (int64_t i = 0; i < s.width; ++i) static_cast<uint16_t*>(taps[l])[to + i] = narrow(from[i]);
          else
            std::memcpy(static_cast<float*>(taps[l]) + to, from, s.width * sizeof(float));
        });
    }
    if (ending && !full)
      worker.share(rows, [&](int64_t row) {
        normalize(hidden + row * s.width, ending, s.epsilon, s.width, hidden + row * s.width);
      });
  });
  return full;
} catch (const std::bad_alloc&) {
  return 1;
}
