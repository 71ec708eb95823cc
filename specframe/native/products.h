// Products of rows with whole weights, by all threads of the pool.

#pragma once

#include <algorithm>
#include <cstring>

#include "abi.h"
#include "attention.h"
#include "gemm.h"
#include "thread_pool.h"

namespace {

inline int64_t tile_count(const Weight& w) { return (w.outputs + TILE - 1) / TILE; }
inline int64_t tile_bytes(const Weight& w) { return w.inputs / BLOCK * block_bytes(w.bits); }

// How a weight is multiplied with so many rows: some of them at a time, with one tile or two.
struct Turns {
  const Weight& w;
  const Codes& x;
  int64_t rows, both, group, count;  // tiles and rows at once, and how often
  bool registers = false;            // those of AMX
  int64_t configured = 0;            // rows of these

  Turns(const Weight& weight, const Codes& codes, int64_t all, int threads) : w(weight), x(codes), rows(all) {
#ifdef AMX
    registers = w.bits == 16 && has_tiles();
#endif
    both = !registers && tile_count(w) >= 4 * threads && with_two(w.bits, rows, 1) ? 2 : 1;
    const int64_t alone = w.bits == 32 ? TOGETHER_SINGLES : w.bits == 16 ? TOGETHER : GROUP;
    group = registers ? MANY : equal_share(rows, both > 1 ? GROUP_OF_TWO : alone);
    count = (rows + group - 1) / group;
  }

  ~Turns() {
#ifdef AMX
    if (configured) _tile_release();
#endif
  }

  // Calls `use(row, tile, products)` with each row's products with `tiles` tiles that stand at `data`; `following` are
  // multiplied next.
  template <typename Use>
  void run(const uint8_t* data, int64_t tiles, const uint8_t* following, Use use) {
    const int64_t blocks = w.inputs / BLOCK;
    for (int64_t turn = 0; turn < count; ++turn) {
      const int64_t row = turn * group, some = std::min(group, rows - row);
      const Ahead ahead = Ahead{following}.of(turn, count, tiles * tile_bytes(w));
      alignas(64) float found[2 * MANY][TILE];
#ifdef AMX
      if (registers && some != configured) configure(configured = some);
#endif
      if (tiles > 1) with_two(w.bits, rows, some)(data, ahead, blocks, x, row, found);
      else if (w.bits == 32) SINGLES[some - 1](data, ahead, blocks, x, row, found);
      else if (w.bits == 16) multiply_halves(data, ahead, blocks, x, row, some, registers, found);
      else (w.bits == 4 ? CODES<4> : CODES<8>)[some - 1](data, ahead, blocks, x, row, found);
      for (int64_t tile = 0; tile < tiles; ++tile)
        for (int64_t r = 0; r < some; ++r) use(row + r, tile, found[tile * MANY + r]);
    }
  }
};

// Where a thread's share of a weight begins.
inline const uint8_t* beginning(const Weight& w, const Worker& worker) {
  return w.data + tile_count(w) * worker.id / worker.threads * tile_bytes(w);
}

// out [M, stride] = x W^T + bias, or that added to it; to be called by all threads of the pool. `next` is the weight that is
// multiplied after this one, or null: its beginning is fetched at the end.
void multiply(Worker& worker, const Weight& w, const Weight* next, const Codes& x, int64_t rows, float* out,
              int64_t stride, bool add) {
  Turns turns(w, x, rows, worker.threads);
  const int64_t tiles = tile_count(w), parts = (tiles + turns.both - 1) / turns.both;
  const int64_t last = parts * (worker.id + 1) / worker.threads - 1;  // of this thread
  worker.share(parts, [&](int64_t part) {
    const int64_t first = part * turns.both, here = std::min(turns.both, tiles - first);
    const uint8_t *data = w.data + first * tile_bytes(w), *after = data + here * tile_bytes(w);
    for (int64_t row = 0; row < std::min(rows, turns.group); ++row)  // the results' places, which another core may have
      for (int64_t tile = first; tile < first + here; ++tile) __builtin_prefetch(out + row * stride + tile * TILE, 1);
    const uint8_t* following = part < last ? after : next ? beginning(*next, worker) : data;
    turns.run(data, here, following, [&](int64_t row, int64_t tile, const float* from) {
      const int64_t start = (first + tile) * TILE, width = std::min(TILE, w.outputs - start);
      float* to = out + row * stride + start;
      for (int64_t i = 0; i < width; ++i) {
        const float value = w.bias ? from[i] + w.bias[start + i] : from[i];
        to[i] = add ? to[i] + value : value;
      }
    });
  });
}

// out [M, N] = silu(gate) * up, of products with a weight of 2 N outputs: the gates, and then what they let through. A thread
// multiplies and rounds a block of both, so that no other has to ask for the products; `room` has 4 TILE floats for each row.
void gate(Worker& worker, const Weight& w, const Weight& next, const Codes& x, int64_t rows, Codes& out, float* room) {
  Turns turns(w, x, rows, worker.threads);
  const int64_t half = w.outputs / 2, bytes = tile_bytes(w), blocks = half / BLOCK;
  const int64_t last = blocks * (worker.id + 1) / worker.threads - 1;  // of this thread
  worker.share(blocks, [&](int64_t block) {
    const uint8_t *gates = w.data + 2 * block * bytes, *ups = gates + half / TILE * bytes;
    const uint8_t* after = block < last ? gates + 2 * bytes : beginning(next, worker);
    for (int64_t first = 0; first < 4; first += turns.both) {
      const auto at = [&](int64_t tile) { return tile < 2 ? gates + tile * bytes : tile < 4 ? ups + (tile - 2) * bytes : after; };
      turns.run(at(first), turns.both, at(first + turns.both), [&](int64_t row, int64_t tile, const float* from) {
        std::memcpy(room + ((first + tile) * rows + row) * TILE, from, TILE * sizeof(float));
      });
    }
    for (int64_t row = 0; row < rows; ++row) {
      alignas(64) float values[BLOCK];
      for (int64_t i = 0; i < BLOCK; i += LANE) {  // silu(x) = x / (1 + exp(-x))
        const float* from = room + (i / TILE * rows + row) * TILE + i % TILE;
        Lane x = *reinterpret_cast<const Lane*>(from), up = *reinterpret_cast<const Lane*>(from + 2 * rows * TILE);
        if (w.bias) {
          x += *reinterpret_cast<const Lane*>(w.bias + block * BLOCK + i);
          up += *reinterpret_cast<const Lane*>(w.bias + half + block * BLOCK + i);
        }
        const Lane small = exponential(x < 0.f ? x : -x), product = x * up * (x < 0.f ? small : Lane{} + 1.f);
        *reinterpret_cast<Lane*>(values + i) = product / (small + 1.f);
      }
      out.set(row, values, BLOCK, block * BLOCK);
    }
  });
}

}  // namespace
