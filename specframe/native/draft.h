// A whole draft: the committed pairs that are new, then a beam search over the drafter's levels, and the finished tree.
//
// Every product, layer and ranking is the function that Python calls for a single one, so a draft has the bits of the search
// that goes level by level in Python. Values between two modules are rounded as that search rounds them.

#pragma once

#include <algorithm>
#include <cstring>
#include <new>
#include <vector>

#include "abi.h"
#include "gemm.h"
#include "search.h"

namespace {

// Shows the first `count` of a row's committed pairs, within the window that ends there, from slot 0 of a mask on.
void show_pairs(const SessionRows& m, uint8_t* sees, int64_t count) {
  const int64_t first = std::min(m.sinks, count), last = std::min(m.recent, count - first);
  std::memset(sees, 1, first);
  std::memset(sees + count - last, 1, last);
}

// The forward passes of a drafter over the rows of its session.
struct Passes {
  const Network& n;
  const SessionRows& m;
  const int64_t width;
  std::vector<float> pairs, taps, states, embeddings, normed, logits, carried;
  std::vector<uint8_t> visible, before;  // what pairs see in the last layer, and in those before it; empty: the same
  std::vector<int64_t> places, positions;

  Passes(const Network& network, const SessionRows& rows) : n(network), m(rows), width(network.shape.width) {}

  float number(const void* from, int64_t at) const {
    return n.halves ? widen(static_cast<const uint16_t*>(from)[at]) : static_cast<const float*>(from)[at];
  }

  void round(float* values, int64_t count) const {
    if (n.halves)
      for (int64_t i = 0; i < count; ++i) values[i] = widen(narrow(values[i]));
  }

  // The states of `nodes` pairs of every row from `first` on, which see the slots below `end` that are visible to them.
  // An LSTM runs over each K pairs, on from what is `carried`.
  void run(int64_t first, int64_t nodes, int64_t end) {
    enter((m.rows - first) * nodes);
    layers(first, nodes, end);
  }

  // What enters the layers, of so many pairs.
  void enter(int64_t many) {
    states.resize(many * width);
    if (n.fusion.outputs) {
      if (specframe_multiply(&n.fusion, pairs.data(), many, states.data())) throw std::bad_alloc();
      round(states.data(), many * width);
    } else if (n.recurrent) {
      if (specframe_recur(n.cells, n.recurrent, many / n.block, n.block, pairs.data(), carried.data(), n.halves, states.data()))
        throw std::bad_alloc();
    } else {
      embeddings.resize(many * width);
      for (int64_t i = 0; i < many; ++i) {
        std::memcpy(embeddings.data() + i * width, pairs.data() + 2 * i * width, width * sizeof(float));
        std::memcpy(states.data() + i * width, pairs.data() + (2 * i + 1) * width, width * sizeof(float));
      }
    }
  }

  // Runs the layers over `states`, [B - first, nodes, D], one after the other: a layer's output is rounded.
  void layers(int64_t first, int64_t nodes, int64_t end) {
    const int64_t rows = m.rows - first, many = rows * nodes;
    Batch batch = {};
    batch.rows = rows;
    batch.nodes = nodes;
    batch.first = first;
    batch.width = end;
    batch.cache_rows = m.cache_rows;
    batch.slots = m.slots;
    batch.bits = 32;
    batch.places = places.data();
    batch.positions = positions.data();
    batch.cosine = m.cosine;
    batch.sine = m.sine;
    const std::vector<void*> taps(n.shape.layers, nullptr);
    for (int64_t l = 0; l < n.shape.layers; ++l) {
      std::vector<uint8_t> runs(n.shape.layers, 0);
      runs[l] = 3;  // attention and MLP
      batch.visible = (l + 1 < n.shape.layers && !before.empty() ? before : visible).data();
      batch.embeddings = l || n.fusion.outputs || n.recurrent ? nullptr : embeddings.data();
      if (specframe_decode(&n.shape, n.layers, &batch, m.cache, states.data(), nullptr, taps.data(), runs.data()))
        throw std::bad_alloc();
      round(states.data(), many * width);
    }
  }

  // Before the last layer, a pair of a block sees none after it: its keys and values depend on the pairs up to its own.
  void hide_later() {
    before.clear();
    if (n.block == 1 || n.shape.layers == 1) return;
    before = visible;
    const int64_t many = static_cast<int64_t>(places.size()), end = static_cast<int64_t>(visible.size()) / many;
    for (int64_t i = 0; i < many; ++i) std::memset(before.data() + i * end + places[i] + 1, 0, n.block - 1 - i % n.block);
  }

  // Puts the new pairs together: embedding and feature side by side, 0 after those of a row.
  void pair(const Pairs& p) {
    const int64_t many = (m.rows - p.first) * p.most, entering = p.taps > 1 ? p.taps * width : 0;
    pairs.assign(many * 2 * width, 0.f);
    taps.assign(many * entering, 0.f);
    const auto copy = [&](const void* from, int64_t at, float* to) {
      for (int64_t k = 0; k < width; ++k) to[k] = number(from, at * width + k);
    };
    for (int64_t i = 0; i < many; ++i) {
      const int64_t row = i / p.most, at = i % p.most, node = row * p.nodes + (p.kept ? p.kept[i] : at);
      if (at >= p.fresh[row]) continue;
      float *own = pairs.data() + 2 * i * width, *feature = entering ? taps.data() + i * entering : own + width;
      copy(p.embeddings, p.tokens ? p.tokens[i] : i, own);
      for (int64_t tap = 0; tap < p.taps; ++tap) copy(p.features[tap], node, feature + tap * width);
    }
    if (!entering) return;
    states.resize(many * width);
    if (specframe_multiply(&n.entry, taps.data(), many, states.data())) throw std::bad_alloc();
    round(states.data(), many * width);
    for (int64_t i = 0; i < many; ++i)
      std::memcpy(pairs.data() + (2 * i + 1) * width, states.data() + i * width, width * sizeof(float));
  }

  // Takes the new pairs in. In the last layer each sees all of its row's, before it those up to its own. The K - 1 pairs
  // before them ask again, for the last block.
  void take(const Pairs& p) {
    const int64_t rows = m.rows - p.first, again = n.block - 1, nodes = again + p.most, many = rows * nodes;
    int64_t end = 0;
    for (int64_t row = p.first; row < m.rows; ++row) end = std::max(end, m.counts[row] - p.fresh[row - p.first] + nodes);
    pair(p);
    if (n.recurrent)
      recur(p, again);
    else
      enter(many);
    visible.assign(many * end, 0);
    before.assign(n.shape.layers > 1 ? many * end : 0, 0);
    places.resize(many);
    positions.resize(many);
    for (int64_t i = 0; i < many; ++i) {
      const int64_t row = i / nodes, count = m.counts[p.first + row];
      places[i] = count - p.fresh[row] + i % nodes;
      positions[i] = std::max(places[i] - again, int64_t{0});  // nothing sees the pairs before a row's first
      show_pairs(m, visible.data() + i * end + again, count);
      if (!before.empty()) show_pairs(m, before.data() + i * end + again, std::min(positions[i] + 1, count));
    }
    layers(p.first, nodes, end);
    for (int64_t row = 0; row < rows; ++row)
      std::memcpy(m.outputs + (p.first + row) * n.block * width, states.data() + (row * nodes + p.fresh[row] - 1) * width,
                  n.block * width * sizeof(float));
  }

  // The LSTM over each row's new pairs, after what it made of the `again` pairs before them: [B - first, nodes, D].
  void recur(const Pairs& p, int64_t again) {
    const int64_t rows = m.rows - p.first, nodes = again + p.most, line = again * width;
    states.assign(rows * nodes * width, 0.f);
    for (int64_t row = 0; row < rows; ++row) {
      float *own = states.data() + row * nodes * width, *last = m.tail + (p.first + row) * line;
      std::memcpy(own, last, line * sizeof(float));
      if (specframe_recur(n.cells, n.recurrent, 1, p.fresh[row], pairs.data() + row * p.most * 2 * width,
                          m.states + (p.first + row) * n.recurrent * 2 * width, n.halves, own + line))
        throw std::bad_alloc();
      std::memcpy(last, own + p.fresh[row] * width, line * sizeof(float));
    }
  }

  // The `count` most probable columns of `many` outputs, of so many levels in turns; they become what is fed back.
  void propose(float* outputs, int64_t many, int64_t levels, int64_t count, const double* powers, float* gains,
               int64_t* columns) {
    const float* read = outputs;
    if (n.norm) {
      normed.resize(many * width);
      specframe_normalize(outputs, n.norm, n.shape.epsilon, many, width, 1, n.halves, normed.data());
      read = normed.data();
    }
    logits.resize(many * n.head.outputs);
    if (specframe_multiply(&n.head, read, many, logits.data())) throw std::bad_alloc();
    if (powers)
      for (int64_t i = 0; i < many * n.head.outputs; ++i)
        logits[i] *= static_cast<float>(powers[i / n.head.outputs % levels]);
    specframe_rank(logits.data(), many, n.head.outputs, count, gains, columns);
    if (n.norm && n.feeds_normed) std::memcpy(outputs, read, many * width * sizeof(float));
  }
};

}  // namespace

// Takes new pairs in, where there are any, and grows trees below the roots. Returns 0, or 1 where there is no memory.
extern "C" int specframe_draft(const Network* network, const SessionRows* rows, const Pairs* pairs, const Search* search, Trees* out) try {
  const Network& n = *network;
  const SessionRows& m = *rows;
  const Search& s = *search;
  Passes passes(n, m);
  if (pairs) passes.take(*pairs);
  const int64_t width = n.shape.width, block = n.block, part = block * width, state = n.recurrent * 2 * width;
  const int64_t count = std::min(s.width, n.head.outputs);
  const int64_t base = *std::max_element(m.counts, m.counts + m.rows) + m.shift;  // the slot of the first expansion below the root
  std::vector<Candidates> found(m.rows);
  struct {
    std::vector<int64_t> above, position;  // [E, B], the expansion above each, and where the next pair below it stands
    std::vector<float> outputs, states;    // [E, B, K, D] and [E, B, recurrent, 2, D]
  } e;                                     // the nodes that were expanded, the root first
  e.above.assign(m.rows, -1);
  e.position.assign(m.counts, m.counts + m.rows);
  e.outputs.assign(m.outputs, m.outputs + m.rows * part);
  if (state) e.states.assign(m.states, m.states + m.rows * state);
  int64_t begin = 0;  // the first expansion of the frontier
  std::vector<float> gains, outputs;
  std::vector<int64_t> columns;
  for (int64_t level = 0;;) {
    const int64_t frontier = static_cast<int64_t>(found[0].beam.size()), many = m.rows * frontier;
    const int64_t total = static_cast<int64_t>(e.position.size()) / m.rows, levels = std::min(block, s.depth - level);
    if (level) {
      passes.pairs.resize(many * 2 * part);
      passes.places.resize(many * block);
      passes.positions.resize(many * block);
      passes.carried.resize(many * state);
      const int64_t end = base + (total - 1 + frontier) * block;
      passes.visible.assign(many * block * end, 0);
      for (int64_t i = 0; i < many; ++i) {
        const int64_t b = i / frontier, at = i % frontier, up = begin + found[b].places[at];
        const float* above = e.outputs.data() + (up * m.rows + b) * part;
        int64_t node = found[b].beam[at];
        for (int64_t j = block - 1; j >= 0; --j, node = found[b].parents[node]) {
          float* pair = passes.pairs.data() + (i * block + j) * 2 * width;
          for (int64_t k = 0; k < width; ++k) pair[k] = passes.number(n.embeddings, found[b].columns[node] * width + k);
          std::memcpy(pair + width, above + j * width, width * sizeof(float));
        }
        uint8_t* sees = passes.visible.data() + i * block * end;
        show_pairs(m, sees + m.shift, m.counts[b]);
        for (int64_t one = up; one > 0; one = e.above[one * m.rows + b]) std::memset(sees + base + (one - 1) * block, 1, block);
        std::memset(sees + base + (total - 1 + at) * block, 1, block);
        for (int64_t j = 0; j < block; ++j) {
          if (j) std::memcpy(sees + j * end, sees, end);
          passes.places[i * block + j] = base + (total - 1 + at) * block + j;
          passes.positions[i * block + j] = e.position[up * m.rows + b] + j;
        }
        if (state) std::memcpy(passes.carried.data() + i * state, e.states.data() + (up * m.rows + b) * state, state * sizeof(float));
      }
      passes.hide_later();
      passes.run(0, frontier * block, end);
      for (int64_t at = 0; at < frontier; ++at)
        for (int64_t b = 0; b < m.rows; ++b) {
          const int64_t up = begin + found[b].places[at], i = b * frontier + at;
          e.above.push_back(up);
          e.position.push_back(e.position[up * m.rows + b] + block);
          e.outputs.insert(e.outputs.end(), passes.states.begin() + i * part, passes.states.begin() + (i + 1) * part);
          e.states.insert(e.states.end(), passes.carried.begin() + i * state, passes.carried.begin() + (i + 1) * state);
        }
      begin = total;
      for (Candidates& row : found) row.expand();
    }
    ++out->passes;
    outputs.resize(many * levels * width);
    const auto own = [&](int64_t i) { return e.outputs.data() + ((begin + i % frontier) * m.rows + i / frontier) * part; };
    for (int64_t i = 0; i < many; ++i) std::memcpy(outputs.data() + i * levels * width, own(i), levels * width * sizeof(float));
    gains.resize(many * levels * count);
    columns.resize(many * levels * count);
    passes.propose(outputs.data(), many * levels, levels, count, s.powers ? s.powers + level : nullptr, gains.data(), columns.data());
    if (n.norm && n.feeds_normed)
      for (int64_t i = 0; i < many; ++i) std::memcpy(own(i), outputs.data() + i * levels * width, levels * width * sizeof(float));
    for (int64_t j = 0; j < levels; ++j) {
      const int64_t line = frontier * levels * count;
      for (int64_t b = 0; b < m.rows; ++b) found[b].add(gains.data() + b * line, columns.data() + b * line, j, levels, count);
      ++level;
      if (s.gain != 0.)
        for (Candidates& row : found) {
          const double before = row.expected;
          row.expected = row.expect(s.nodes);
          row.ended = row.expected - before <= s.gain;
        }
      if (s.scores && j == levels - 1) end(s, found, levels);
      const bool ended = std::all_of(found.begin(), found.end(), [](const Candidates& row) { return row.ended; });
      if (level == s.depth || ended) {
        write(s, m.roots, n.support, found, level, out);
        return 0;
      }
      const int64_t next = next_width(s, found);
      for (Candidates& row : found) row.choose(next, count);
    }
  }
} catch (const std::bad_alloc&) {
  return 1;
}
