// Top chunks by attention: the chunks of texts that queries attend to most, by the chunks' mean keys.

#pragma once

#include <algorithm>
#include <new>
#include <vector>

#include "abi.h"
#include "attention.h"
#include "thread_pool.h"

namespace {

constexpr int64_t FAR = 4;  // tiles: how far ahead of what is computed memory is fetched

// Memory of one thread: its `MANY` queries in bfloat16 are those from `begin` on in `codes`.
struct Scratch {
  Codes& codes;
  int64_t begin;
  float *mass, *shares;  // [tiles, TILE], and [tiles, MANY, TILE]
  int32_t* words;         // [tiles * TILE]
  uint64_t* ranks;        // [tiles * TILE]

  static int64_t floats(const TopChunks& b) { return b.tiles * TILE * (1 + MANY); }
};

// Turns `count` queries' products with a head's chunks into shares, and adds these up.
inline void add_shares(const Scratch& scratch, int64_t tiles, int64_t end, int64_t count) {
  const auto at = [](float* from) -> Lane& { return *reinterpret_cast<Lane*>(from); };
  for (int64_t q = 0; q < count; ++q) {
    const auto part = [&](int64_t i) -> Lane& { return at(scratch.shares + (i / TILE * MANY + q) * TILE + i % TILE); };
    for (int64_t i = end; i < tiles * TILE; ++i) scratch.shares[(i / TILE * MANY + q) * TILE + i % TILE] = -INFINITY;
    Lane highest = part(0), total = {};
    for (int64_t i = LANE; i < tiles * TILE; i += LANE) highest = part(i) > highest ? part(i) : highest;
    float most = highest[0];
    for (int i = 1; i < LANE; ++i) most = std::max(most, highest[i]);
    for (int64_t i = 0; i < tiles * TILE; i += LANE) total += part(i) = exponential(part(i) - most);
    const float factor = 1.f / sum(total);
    for (int64_t i = 0; i < tiles * TILE; i += LANE) at(scratch.mass + i) += part(i) * factor;
  }
}

// Ranks of the `found` best of the first `end` chunks, the highest first: a chunk's mass, whose order is that of its
// bits, above its number's complement, so that of equal masses the earlier chunk is higher.
inline const uint64_t* rank_best(const Scratch& scratch, int64_t end, int64_t found) {
  int32_t* words = scratch.words;
  std::memcpy(words, scratch.mass, end * sizeof(float));
  for (int64_t i = 0; i < end; ++i) words[i] &= INT32_MAX;
  words[0] = INT32_MAX;
  int32_t least = 0;  // what `found` chunks reach, but for its last bits: without branches that no processor foresees
  for (int32_t bit = 1 << 30; bit >= 1 << 14; bit >>= 1) {
    int32_t reached = 0;
    for (int64_t i = 0; i < end; ++i) reached += words[i] >= (least | bit);
    if (reached >= found) least |= bit;
  }
  int64_t count = 0;
  for (int64_t i = 0; i < end; ++i) {
    scratch.ranks[count] = static_cast<uint64_t>(words[i]) << 32 | static_cast<uint32_t>(~i);
    count += words[i] >= least;
  }
  std::sort(scratch.ranks, scratch.ranks + count, [](uint64_t a, uint64_t b) { return a > b; });
  return scratch.ranks;
}

// The best of a layer's, a row's and a head's chunks.
inline void choose_chunks(const TopChunks& b, int64_t item, const Scratch& scratch) {
  const int64_t head = item % b.heads, row = item / b.heads % b.rows, layer = item / b.heads / b.rows;
  const int64_t end = b.ends[row], asked = b.asked[row], tiles = (end + TILE - 1) / TILE, bytes = b.size * TILE * 2;
  const uint8_t* chunks = b.chunks + ((layer * b.slots + b.first + row) * b.heads + head) * b.tiles * bytes;
  const float* queries = b.queries + item * b.sharing * b.steps * b.size;
  int64_t* best = b.best + item * b.count;
  std::fill_n(best, b.count, 0);
  if (!end) return;
  std::fill_n(scratch.mass, tiles * TILE, 0.f);
  for (int64_t first = 0; first < asked * b.sharing; first += MANY) {
    const int64_t count = std::min(MANY, asked * b.sharing - first);
    for (int64_t q = 0; q < count; ++q) {
      const int64_t step = b.steps - asked + (first + q) % asked;
      scratch.codes.set(scratch.begin + q, queries + ((first + q) / asked * b.steps + step) * b.size, b.size);
    }
    for (int64_t tile = 0; tile < tiles; ++tile)
      multiply_halves(chunks + tile * bytes, Ahead{chunks + (tile + FAR) * bytes}, b.size / BLOCK, scratch.codes, scratch.begin, count, false,
                      reinterpret_cast<float(*)[TILE]>(scratch.shares + tile * MANY * TILE));
    add_shares(scratch, tiles, end, count);
  }
  const int64_t found = std::min(end, b.count);
  const uint64_t* ranks = rank_best(scratch, end, found);
  for (int64_t i = 0; i < found; ++i) best[i] = static_cast<uint32_t>(~ranks[i]);
}

}  // namespace

// Returns 0, or 1 where there is no memory.
extern "C" int specframe_top_chunks(const TopChunks* wanted) try {
  const TopChunks& b = *wanted;
  const int64_t threads = wanted_threads();
  Codes codes(threads * MANY, b.size, 16);
  std::vector<float> floats(threads * Scratch::floats(b));
  std::vector<int32_t> words(threads * b.tiles * TILE);
  std::vector<uint64_t> ranks(words.size());
  ThreadGroup group(static_cast<int>(threads));
  ThreadPool::run(group, [&](Worker& worker) {
    float* mass = floats.data() + worker.id * Scratch::floats(b);
    const int64_t own = worker.id * b.tiles * TILE;
    const Scratch scratch{codes, worker.id * MANY, mass, mass + b.tiles * TILE, words.data() + own, ranks.data() + own};
    worker.share(b.layers * b.rows * b.heads, [&](int64_t item) { choose_chunks(b, item, scratch); });
  });
  return 0;
} catch (const std::bad_alloc&) {
  return 1;
}
