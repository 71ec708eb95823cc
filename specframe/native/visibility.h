// The slots of the cache that the nodes of a pass see.

#pragma once

#include <algorithm>
#include <cstdint>

#include "abi.h"
#include "attention.h"
#include "memory.h"

namespace {

// The slot of a node's own entry: of 8 bits, after the newest tokens, which are in whole numbers.
inline int64_t own_slot(const Batch& b, int64_t slot) { return b.bits == 8 ? b.slots + RECENT + slot - b.base : slot; }
// The first slot that a token at a position sees in whole numbers.
inline int64_t first_unrounded(int64_t position) { return std::max<int64_t>(position / SPAN - 1, 0) * SPAN; }
inline int64_t list_count(const Batch& b) { return b.listed ? b.list_layers * b.list_heads : 1; }
// The number of the list of a layer and a head of keys.
inline int64_t list_of(const Batch& b, int64_t layer, int64_t head) {
  return b.listed ? layer % b.list_layers * b.list_heads + head % b.list_heads : 0;
}

// What `count` queries from `first` on see by a list, of a row's nodes in turns of `sharing`.
inline View view_of(const Batch& b, int64_t list, int64_t row, int64_t first, int64_t count, int64_t sharing) {
  const int64_t high = (first + count - 1) / sharing;  // the last node
  View view;
  const auto look = [&](int64_t slot, auto sees) {
    float mask[LANE] = {};
    int64_t all = 0;
    for (int64_t q = 0; q < count; ++q) all += (mask[q] = sees((first + q) / sharing));
    if (all == count && view.masks.empty()) view.add(slot);
    else if (all) view.add(slot, mask);
  };
  // The committed slots, and which nodes see each; null: all do.
  const uint8_t* visible = b.sees || b.listed ? nullptr : b.visible + row * b.nodes * b.width;
  const auto committed = [&](auto visit) {
    if (b.listed) {
      const int64_t* slots = b.listed + ((list / b.list_heads * b.rows + row) * b.list_heads + list % b.list_heads) * b.list_slots;
      for (int64_t k = 0; k < b.list_slots && slots[k] >= 0; ++k) visit(slots[k]);
    } else {
      const int64_t end = b.sees ? b.length[row] : b.bits == 8 ? b.base : b.width;
      for (int64_t slot = 0; slot < end; ++slot) visit(slot);
    }
  };
  const auto sees = [&](int64_t node, int64_t slot) { return !visible || visible[node * b.width + slot]; };
  if (b.bits == 8) {
    int64_t whole[LANE], lowest = b.slots;  // a token sees another rounded once that has left its newest ones
    for (int64_t node = first / sharing; node <= high; ++node)
      lowest = std::min(lowest, whole[node - first / sharing] = first_unrounded(b.positions[row * b.nodes + node]));
    const auto from = [&](int64_t node) { return whole[node - first / sharing]; };
    committed([&](int64_t slot) {
      if (slot < lowest && !visible) view.add(slot);
      else look(slot, [&](int64_t node) { return slot < from(node) && sees(node, slot); });
    });
    committed([&](int64_t slot) {
      if (slot >= lowest) look(b.slots + slot % RECENT, [&](int64_t node) { return slot >= from(node) && sees(node, slot); });
    });
  } else {
    committed([&](int64_t slot) {
      if (visible) look(slot, [&](int64_t node) { return sees(node, slot); });
      else view.add(slot);
    });
  }
  if (b.sees) {
    const uint8_t* tree = b.sees + row * b.nodes * b.nodes;
    for (int64_t j = 0; j <= high; ++j)
      look(own_slot(b, b.base + j), [&](int64_t node) { return j <= node && tree[node * b.nodes + j]; });
  } else if (b.listed || b.bits == 8) {
    const int64_t begin = b.listed ? b.base : 0, width = b.width - begin;
    const uint8_t* path = b.visible + row * b.nodes * width;
    for (int64_t slot = b.base; slot < b.width; ++slot)
      look(own_slot(b, slot), [&](int64_t node) { return path[node * width + slot - begin]; });
  }
  view.close();
  return view;
}

}  // namespace
