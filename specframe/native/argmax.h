// The exact argmax of a row's products with a weight, found with an int8 copy of the weight and a bound on its error.
//
// Of an output's weights w, their copy c, activations x and their codes y, the product w x differs from c y by at most
// |w - c| |x| + |c| |x - y| (Cauchy and Schwarz). Where another output is above one by more than that, it is not the
// largest. Tiles with others, a few, are multiplied by the very instructions that multiply a whole weight: the result is
// the largest of those products, bit for bit, and reads half of a weight of 16 bits, or a quarter of one of 32.

#pragma once

#include <cmath>
#include <memory>
#include <new>
#include <vector>

#include "abi.h"
#include "attention.h"
#include "products.h"
#include "thread_pool.h"

namespace {

constexpr int64_t PIECE = 256;   // tiles that one thread looks through
constexpr double LARGE = 1e15;   // of a row: beyond it a sum may be infinite, and nothing is ruled out
constexpr float TINY = 1e-30f;   // more than numbers below the normal ones, which may count as 0, can add up to

inline const Lane* lanes(const float* from) { return reinterpret_cast<const Lane*>(from); }

inline Lane larger(Lane a, Lane b) { return a > b ? a : b; }

inline float largest(Lane lane) {
  typedef float Quarter __attribute__((vector_size(16)));
  Quarter parts[LANE / 4];
  std::memcpy(parts, &lane, sizeof(lane));
  for (int width = LANE / 8; width; width /= 2)
    for (int i = 0; i < width; ++i) parts[i] = parts[i] > parts[i + width] ? parts[i] : parts[i + width];
  const Quarter all = parts[0], turned = {all[2], all[3], all[0], all[1]}, two = all > turned ? all : turned;
  return two[0] > two[1] ? two[0] : two[1];
}

// One weight of a tile of 16 or 32 bits: of an output, by the block and place of its input.
inline float weight_at(const uint8_t* block, int64_t bits, int64_t output, int64_t input) {
  if (bits == 32) return reinterpret_cast<const float*>(block)[input * TILE + output];
  return widen(reinterpret_cast<const uint16_t*>(block)[input / 2 * 2 * TILE + 2 * output + input % 2]);
}

struct Best {
  float value = -INFINITY;
  int64_t output = -1;
};

}  // namespace

// Writes a copy of a weight in 8 bits, in blocks as GGUF's Q8_0 has them, and of each output the squares of the norms |w - c|,
// |w| and |c|, and the largest scale: [4, tiles * TILE].
extern "C" void specframe_copy(const Weight* exact, uint8_t* copy, double* norms) {
  const int64_t tiles = tile_count(*exact), blocks = exact->inputs / BLOCK, outputs = tiles * TILE;
  ThreadGroup group(wanted_threads());
  ThreadPool::run(group, [&](Worker& worker) {
    worker.share(tiles, [&](int64_t tile) {
      double *lost = norms + tile * TILE, *size = lost + outputs, *kept = size + outputs, *scales = kept + outputs;
      for (int64_t b = 0; b < blocks; ++b) {
        const uint8_t* from = exact->data + tile * tile_bytes(*exact) + b * block_bytes(exact->bits);
        uint8_t* to = copy + (tile * blocks + b) * block_bytes(8);
        for (int64_t i = 0; i < TILE; ++i) {
          float values[BLOCK], most = 0;
          for (int64_t k = 0; k < BLOCK; ++k) most = std::max(most, std::abs(values[k] = weight_at(from, exact->bits, i, k)));
          const Scale narrowed = static_cast<Scale>(most / 127);
          std::memcpy(to + TILE * BLOCK + 2 * i, &narrowed, 2);
          const float scale = scale_at(to + TILE * BLOCK + 2 * i), inverse = scale > 0 ? 1 / scale : 0;
          double off = 0, whole = 0, rounded = 0;
          for (int64_t k = 0; k < BLOCK; ++k) {
            const float code = std::max(-127.f, std::min(127.f, std::nearbyintf(values[k] * inverse)));
            const double exactly = values[k], value = static_cast<double>(code) * scale;
            to[k / 4 * 4 * TILE + 4 * i + k % 4] = static_cast<uint8_t>(static_cast<int>(code) + 128);
            off += (exactly - value) * (exactly - value);
            whole += exactly * exactly;
            rounded += value * value;
          }
          lost[i] += off;
          size[i] += whole;
          kept[i] += rounded;
          scales[i] = std::max(scales[i], static_cast<double>(scale));
        }
      }
    });
  });
}

// `best` [M] is the first largest output of each row x [M, inputs], or -1 where that is not a number.
// Returns 0, or 1 where there is no memory.
extern "C" int specframe_argmax(const BoundedWeight* head, const float* x, int64_t rows, int64_t* best) try {
  const Weight &exact = head->exact, &copy = head->copy;
  const int64_t inputs = exact.inputs, tiles = tile_count(exact), blocks = inputs / BLOCK, pieces = (tiles + PIECE - 1) / PIECE;
  const float *lost = head->lost, *kept = head->kept;
  const int threads = wanted_threads();
  Codes coarse(rows, inputs, 8), fine(rows, inputs, exact.bits);
  const std::unique_ptr<float[]> sizes(new float[2 * rows]);       // |x| and |x - y|
  const std::unique_ptr<float[]> highest(new float[rows * tiles]);  // that an output of a tile may have
  std::vector<float> bars(threads * rows * TILE, -INFINITY);        // that an output has at least, by thread
  std::vector<Best> found(rows * pieces);
#ifdef AMX
  const bool registers = exact.bits == 16 && has_tiles();
#else
  const bool registers = false;
#endif
  ThreadGroup group(threads);
  ThreadPool::run(group, [&](Worker& worker) {
    worker.share(rows, [&](int64_t row) {
      const float* values = x + row * inputs;
      coarse.set(row, values, inputs);
      fine.set(row, values, inputs);
      double all = 0, off = 0;
      for (int64_t i = 0; i < inputs; ++i) {
        const double value = exact.bits == 16 ? widen(narrow(values[i])) : values[i];
        const double code = static_cast<double>(coarse.scale[row * blocks + i / BLOCK]) * coarse.code[row * inputs + i];
        all += value * value;
        off += (value - code) * (value - code);
      }
      sizes[row] = static_cast<float>(std::sqrt(all) * (1 + 1e-6));
      sizes[rows + row] = static_cast<float>(std::sqrt(off) * (1 + 1e-6));
    });
    Turns turns(copy, coarse, rows, threads);
    worker.share((tiles + turns.both - 1) / turns.both, [&](int64_t part) {
      const int64_t first = part * turns.both, here = std::min(turns.both, tiles - first), bytes = tile_bytes(copy);
      const uint8_t *data = copy.data + first * bytes, *following = first + here < tiles ? data + here * bytes : data;
      turns.run(data, here, following, [&](int64_t row, int64_t at, const float* products) {
        const int64_t tile = first + at;
        Lane* bar = reinterpret_cast<Lane*>(bars.data() + (worker.id * rows + row) * TILE);
        Lane most = Lane{} - INFINITY;
        for (int lane = 0; lane < PARTS; ++lane) {
          const int64_t from = tile * TILE + lane * LANE;
          const Lane off = *lanes(lost + from) * sizes[row] + *lanes(kept + from) * sizes[rows + row] + TINY;
          const Lane value = *lanes(products + lane * LANE);
          bar[lane] = larger(bar[lane], value - off);
          most = larger(most, value + off);
        }
        highest[row * tiles + tile] = largest(most);
      });
    });
    bool configured = false;
    worker.share(rows * pieces, [&](int64_t item) {
      const int64_t row = item / pieces, first = item % pieces * PIECE;
      Lane least = Lane{} - INFINITY;
      for (int64_t at = row * TILE; at < threads * rows * TILE; at += rows * TILE)
        for (int part = 0; part < PARTS; ++part) least = larger(least, lanes(bars.data() + at)[part]);
      const float bar = largest(least);
      const bool all = !(sizes[row] < LARGE);
      for (int64_t tile = first; tile < std::min(first + PIECE, tiles); ++tile) {
        if (!all && highest[row * tiles + tile] < bar) continue;
        const uint8_t* data = exact.data + tile * tile_bytes(exact);
        alignas(64) float products[MANY][TILE];
#ifdef AMX
        if (registers && !configured) configure(1);
        configured = registers;
#endif
        if (exact.bits == 32) SINGLES[0](data, Ahead{data}, blocks, fine, row, products);
        else multiply_halves(data, Ahead{data}, blocks, fine, row, 1, registers, products);
        const int64_t start = tile * TILE, width = std::min(TILE, exact.outputs - start);
        for (int64_t i = 0; i < width; ++i) {
          const float value = products[0][i];
          if (!(value <= found[item].value) && found[item].value == found[item].value) found[item] = {value, start + i};
        }
      }
    });
#ifdef AMX
    if (configured) _tile_release();
#endif
    (void)configured;
  });
  for (int64_t row = 0; row < rows; ++row) {
    Best most;
    for (int64_t piece = 0; piece < pieces; ++piece) {
      const Best& other = found[row * pieces + piece];
      if (!(other.value <= most.value) && most.value == most.value) most = other;
    }
    best[row] = most.value == most.value ? most.output : -1;
  }
  return 0;
} catch (const std::bad_alloc&) {
  return 1;
}

// The top-1 path through a row's tree: the first child that holds its parent's most likely next token, and so on.
inline void follow(const GreedyChoice& c, int64_t nodes, int64_t row) {
  const int64_t first = row * nodes;
  const int64_t width = c.levels + 1;
  int64_t *path = c.verdict + row * (2 * width + 3), *tokens = path + width, *numbers = tokens + width, node = 0;
  std::fill(path, tokens, -1);
  std::fill(tokens, numbers + 3, 0);
  for (int64_t depth = 0;; ++depth) {
    const int64_t token = c.best[first + node];
    if (token < 0) {  // no token has any probability after this node
      numbers[1] = 0;
      return;
    }
    path[depth] = node;
    tokens[depth] = numbers[2] = token;
    numbers[0] = depth;
    numbers[1] = depth + 1;
    int64_t child = node + 1;
    while (child < nodes && !(c.valid[first + child] && c.parents[first + child] == node && c.tokens[first + child] == token)) ++child;
    if (child == nodes) return;
    node = child;
  }
}

// The pass of `specframe_decode` over whole trees, from tokens to their most likely successors. Returns 0, 1 where there is no
// memory, or 2 where a token, a parent or a depth is out of bounds.
extern "C" int specframe_choose(const DecoderSizes* shape, const Layer* layers, const Batch* batch, void* cache, const float* ending,
                                void* const* taps, const GreedyChoice* choice) try {
  const GreedyChoice& c = *choice;
  const int64_t width = shape->width, rows = batch->rows * batch->nodes, nodes = batch->nodes;
  std::vector<int64_t> positions(rows), depths(rows);
  std::vector<uint8_t> sees(rows * nodes);
  std::vector<int64_t> computed;
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t node = i % nodes, parent = i - node + std::max<int64_t>(c.parents[i], 0);
    if (c.tokens[i] < 0 || c.tokens[i] >= c.known || (node && parent >= i)) return 2;
    if (node) {
      depths[i] = depths[parent] + 1;
      if (depths[i] > c.levels) return 2;
      std::memcpy(&sees[i * nodes], &sees[parent * nodes], nodes);
    }
    if (c.valid[i]) {
      sees[i * nodes + node] = 1;
      computed.push_back(i);
    }
    positions[i] = std::min(batch->length[i / nodes] + depths[i], c.positions - 1);
  }
  const int64_t some = static_cast<int64_t>(computed.size()), count = some * width;
  const std::unique_ptr<float[]> hidden(new float[count]);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t at = c.tokens[computed[i / width]] * width + i % width;
    hidden[i] = c.halves ? widen(static_cast<const uint16_t*>(c.table)[at]) : static_cast<const float*>(c.table)[at];
  }
  Batch placed = *batch;
  placed.positions = positions.data();
  placed.sees = sees.data();
  placed.valid = c.valid;
  if (specframe_decode(shape, layers, &placed, cache, hidden.get(), ending, taps, nullptr)) return 1;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t at = computed[i / width] * width + i % width;
    if (c.halves) hidden[i] = widen(static_cast<uint16_t*>(c.last)[at] = narrow(hidden[i]));
    else static_cast<float*>(c.last)[at] = hidden[i];
  }
  std::vector<int64_t> best(some);
  if (specframe_argmax(c.head, hidden.get(), some, best.data())) return 1;
  std::fill(c.best, c.best + rows, 0);
  for (int64_t i = 0; i < some; ++i) c.best[computed[i]] = best[i];
  for (int64_t row = 0; row < batch->rows; ++row) follow(c, nodes, row);
  return 0;
} catch (const std::bad_alloc&) {
  return 1;
}
