// The pieces of texts that queries attend to most, by the pieces' mean keys.

#pragma once

#include "attention.h"

namespace {

// The queries vote with their shares of attention. A row's are of its last `asked` steps, and its first `ends` pieces get
// votes; the first of them is always among the best.
struct Ballot {
  int64_t layers, rows, heads, sharing, steps, size;  // heads of keys, and how many heads of queries share each
  int64_t slots, first, tiles;                        // rows of the pieces, the one of the first row, and tiles of a row
  int64_t count;                                      // pieces wanted
  const float* queries;                               // [layers, rows, heads * sharing, steps, size]
  const uint8_t* pieces;                              // [layers, slots, heads, tiles, size * TILE] of bfloat16, as weights are
  const int64_t *asked, *ends;                        // [rows]
  int64_t* best;                                      // [layers, rows, heads, count], the best first, then zeros
};

constexpr int64_t FAR = 4;  // tiles: how far ahead of what is computed memory is fetched

// What a thread computes with: `MANY` queries in bfloat16 behind the first `begin` of `codes`.
struct Booth {
  Codes& codes;
  int64_t begin;
  float *votes, *shares;  // [tiles, TILE], and [tiles, MANY, TILE]
  uint64_t* ranks;        // [tiles * TILE]

  static int64_t floats(const Ballot& b) { return b.tiles * TILE * (1 + MANY); }
};

// Turns `count` queries' products with a head's pieces into shares, and adds these up.
inline void cast(const Booth& booth, int64_t tiles, int64_t end, int64_t count) {
  const auto at = [](float* from) -> Lane& { return *reinterpret_cast<Lane*>(from); };
  for (int64_t q = 0; q < count; ++q) {
    const auto part = [&](int64_t i) -> Lane& { return at(booth.shares + (i / TILE * MANY + q) * TILE + i % TILE); };
    for (int64_t i = end; i < tiles * TILE; ++i) booth.shares[(i / TILE * MANY + q) * TILE + i % TILE] = -INFINITY;
    Lane highest = part(0), total = {};
    for (int64_t i = LANE; i < tiles * TILE; i += LANE) highest = part(i) > highest ? part(i) : highest;
    float most = highest[0];
    for (int i = 1; i < LANE; ++i) most = std::max(most, highest[i]);
    for (int64_t i = 0; i < tiles * TILE; i += LANE) total += part(i) = exponential(part(i) - most);
    const float factor = 1.f / sum(total);
    for (int64_t i = 0; i < tiles * TILE; i += LANE) at(booth.votes + i) += part(i) * factor;
  }
}

// The best of a layer's, a row's and a head's pieces.
inline void count_votes(const Ballot& b, int64_t item, const Booth& booth) {
  const int64_t head = item % b.heads, row = item / b.heads % b.rows, layer = item / b.heads / b.rows;
  const int64_t end = b.ends[row], asked = b.asked[row], tiles = (end + TILE - 1) / TILE, bytes = b.size * TILE * 2;
  const uint8_t* pieces = b.pieces + ((layer * b.slots + b.first + row) * b.heads + head) * b.tiles * bytes;
  const float* queries = b.queries + item * b.sharing * b.steps * b.size;
  int64_t* best = b.best + item * b.count;
  std::fill_n(best, b.count, 0);
  if (!end) return;
  std::fill_n(booth.votes, tiles * TILE, 0.f);
  for (int64_t first = 0; first < asked * b.sharing; first += MANY) {
    const int64_t count = std::min(MANY, asked * b.sharing - first);
    for (int64_t q = 0; q < count; ++q) {
      const int64_t step = b.steps - asked + (first + q) % asked;
      booth.codes.set(booth.begin + q, queries + ((first + q) / asked * b.steps + step) * b.size, b.size);
    }
    for (int64_t tile = 0; tile < tiles; ++tile)
      multiply_halves(pieces + tile * bytes, pieces + (tile + FAR) * bytes, b.size / BLOCK, booth.codes, booth.begin, count, false,
                      reinterpret_cast<float(*)[TILE]>(booth.shares + tile * MANY * TILE));
    cast(booth, tiles, end, count);
  }
  for (int64_t i = 0; i < end; ++i) {  // as integers, votes are in order, and of equal ones the earlier piece is higher
    uint32_t word;
    std::memcpy(&word, booth.votes + i, sizeof(word));
    booth.ranks[i] = static_cast<uint64_t>(i ? word : UINT32_MAX) << 32 | static_cast<uint32_t>(~i);
  }
  const int64_t found = std::min(end, b.count);
  const auto higher = [](uint64_t a, uint64_t b) { return a > b; };
  std::nth_element(booth.ranks, booth.ranks + found - 1, booth.ranks + end, higher);
  std::sort(booth.ranks, booth.ranks + found, higher);
  for (int64_t i = 0; i < found; ++i) best[i] = static_cast<uint32_t>(~booth.ranks[i]);
}

}  // namespace

// Returns 0, or 1 where there is no memory.
extern "C" int specframe_vote(const Ballot* ballot) try {
  const Ballot& b = *ballot;
  const int64_t threads = omp_get_max_threads();
  Codes codes(threads * MANY, b.size, 16);
  std::vector<float> floats(threads * Booth::floats(b));
  std::vector<uint64_t> ranks(threads * b.tiles * TILE);
  Team team(static_cast<int>(threads));
  Helpers::run(team, [&](Worker& worker) {
    float* votes = floats.data() + worker.id * Booth::floats(b);
    const Booth booth{codes, worker.id * MANY, votes, votes + b.tiles * TILE, ranks.data() + worker.id * b.tiles * TILE};
    worker.share(b.layers * b.rows * b.heads, [&](int64_t item) { count_votes(b, item, booth); });
  });
  return 0;
} catch (const std::bad_alloc&) {
  return 1;
}
