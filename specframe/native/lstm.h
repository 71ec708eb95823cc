// An LSTM's steps, by weights of 4, 8, 16 or 32 bits.

#pragma once

#include <cstring>
#include <new>
#include <vector>

#include "abi.h"
#include "attention.h"

namespace {

inline Lane sigmoid(Lane x) {
  const Lane small = exponential(x < 0.f ? x : -x);
  return (x < 0.f ? small : Lane{} + 1.f) / (small + 1.f);
}

inline Lane hyperbolic(Lane x) {  // the tangent; near 0 by its series, where a difference of numbers near 1 has few digits
  const Lane size = x < 0.f ? -x : x, small = exponential(size * -2.f), square = x * x;
  const Lane far = (1.f - small) / (small + 1.f), near = size * (square * (square * (2.f / 15.f) - 1.f / 3.f) + 1.f);
  const Lane value = size < .1f ? near : far;
  return x < 0.f ? -value : value;
}

}  // namespace

// out [rows, steps, H] from x [rows, steps, I]; `states` [rows, layers, 2, H], hidden state and cell, move on. With `halves`
// every operation's result is rounded to bfloat16. Returns 0, or 1 where there is no memory.
extern "C" int specframe_recur(const Cell* cells, int64_t layers, int64_t rows, int64_t steps, const float* x, float* states,
                               int64_t halves, float* out) try {
  const int64_t width = cells[0].back.inputs, gates = 4 * width;
  const auto round = [&](Lane value) {
    if (halves)
      for (int i = 0; i < LANE; ++i) value[i] = widen(narrow(value[i]));
    return value;
  };
  const auto at = [](float* from) -> Lane& { return *reinterpret_cast<Lane*>(from); };
  std::vector<float> entering(rows * steps * gates), hidden(rows * width), back(rows * gates);
  for (int64_t layer = 0; layer < layers; ++layer) {
    if (specframe_multiply(&cells[layer].into, layer ? out : x, rows * steps, entering.data())) return 1;
    for (int64_t step = 0; step < steps; ++step) {
      for (int64_t row = 0; row < rows; ++row)
        std::memcpy(hidden.data() + row * width, states + (row * layers + layer) * 2 * width, width * sizeof(float));
      if (specframe_multiply(&cells[layer].back, hidden.data(), rows, back.data())) return 1;
      for (int64_t row = 0; row < rows; ++row) {
        float *own = states + (row * layers + layer) * 2 * width, *cell = own + width;
        float *enters = entering.data() + (row * steps + step) * gates, *backs = back.data() + row * gates;
        for (int64_t i = 0; i < width; i += LANE) {
          const auto gate = [&](int64_t part) {
            return round(round(at(enters + part * width + i)) + round(at(backs + part * width + i)));
          };
          const Lane enter = round(sigmoid(gate(0))), forget = round(sigmoid(gate(1))), content = round(hyperbolic(gate(2)));
          const Lane kept = round(forget * at(cell + i));
          const Lane now = round(kept + enter * content);
          at(cell + i) = now;
          at(own + i) = round(round(sigmoid(gate(3))) * round(hyperbolic(now)));
        }
      }
      for (int64_t row = 0; row < rows; ++row)
        std::memcpy(out + (row * steps + step) * width, states + (row * layers + layer) * 2 * width, width * sizeof(float));
    }
  }
  return 0;
} catch (const std::bad_alloc&) {
  return 1;
}
