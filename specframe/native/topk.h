// The largest of a row of logits.

#pragma once

#include "attention.h"

namespace {

constexpr int64_t STRETCH = 8 * LANE;  // numbers that are looked at together

// `values` gets log-probabilities, the largest first and of equal ones the earlier first; `columns` where they stand.
inline void rank(const float* logits, int64_t width, int64_t count, float* values, int64_t* columns) {
  int64_t found = 0;
  const auto offer = [&](int64_t column) {
    const float value = logits[column];
    if (found == count && !(value > values[count - 1])) return;
    int64_t place = found < count ? found++ : count - 1;
    for (; place && values[place - 1] < value; --place) {
      values[place] = values[place - 1];
      columns[place] = columns[place - 1];
    }
    values[place] = value;
    columns[place] = column;
  };
  const auto part = [&](int64_t column) { return *reinterpret_cast<const Lane*>(logits + column); };
  int64_t column = 0;
  for (; column + STRETCH <= width; column += STRETCH) {
    Lane most = part(column);
    for (int64_t i = LANE; i < STRETCH; i += LANE) most = part(column + i) > most ? part(column + i) : most;
    bool above = found < count;
    for (int i = 0; i < LANE; ++i) above |= most[i] > values[count - 1];
    if (!above) continue;
    for (int64_t i = 0; i < STRETCH; ++i) offer(column + i);
  }
  for (; column < width; ++column) offer(column);

  const float most = values[0];
  Lane shares = {};
  for (column = 0; column + LANE <= width; column += LANE) shares += exponential(part(column) - most);
  float total = sum(shares);
  for (; column < width; ++column) total += std::exp(logits[column] - most);
  for (int64_t i = 0; i < count; ++i) values[i] = values[i] - most - std::log(total);
}

}  // namespace
