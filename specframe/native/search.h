// A beam search on numbers of the host, and the finished tree: what `Candidates` and `Dynamic` do in Python, number by number.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "abi.h"

namespace {

// A product that is rounded before anything is added to it.
[[gnu::noinline]] double times(double a, double b) { return a * b; }

// One row's candidates, in order of birth; 0 is the root. What is not a number is above nothing.
struct Candidates {
  std::vector<int64_t> columns{-1}, parents{-1};
  std::vector<int64_t> beam{0}, places{0};  // the beam, and where the frontier's node that each is, or is below, stands there
  std::vector<double> values{0.};                                     // log-probabilities of the paths
  size_t newest = 0;
  double expected = 1.;
  bool ended = false;

  // The candidates from `first` on with the largest values, best first, of equal ones the earlier first.
  std::vector<int64_t> best(int64_t count, size_t first = 0) const {
    std::vector<int64_t> found;
    found.reserve(count);
    for (size_t at = first; at < values.size(); ++at) {
      const double value = values[at];
      int64_t place = static_cast<int64_t>(found.size());
      if (place == count && !(value > values[found.back()])) continue;
      if (place < count) found.push_back(0);
      else --place;
      for (; place && values[found[place - 1]] < value; --place) found[place] = found[place - 1];
      found[place] = static_cast<int64_t>(at);
    }
    return found;
  }

  // The beam becomes the frontier.
  void expand() {
    for (size_t i = 0; i < places.size(); ++i) places[i] = static_cast<int64_t>(i);
  }

  // The children of the beam, `count` of each, from a level of the `levels` that were proposed below the frontier.
  void add(const float* gains, const int64_t* found, int64_t level, int64_t levels, int64_t count) {
    newest = values.size();
    for (size_t i = 0; i < beam.size(); ++i)
      for (int64_t child = 0; child < count; ++child) {
        const int64_t at = (places[i] * levels + level) * count + child;
        values.push_back((ended ? -INFINITY : values[beam[i]]) + gains[at]);
        columns.push_back(found[at]);
        parents.push_back(beam[i]);
      }
  }

  // The best of the newest level become the beam; a node had `count` children.
  void choose(int64_t width, int64_t count) {
    std::vector<int64_t> chosen = best(width, newest), below;
    for (int64_t one : chosen) below.push_back(places[(one - static_cast<int64_t>(newest)) / count]);
    beam = std::move(chosen);
    places = std::move(below);
  }

  double expect(int64_t count) const {
    double total = 0.;
    for (int64_t one : best(count)) total += std::exp(values[one]);
    return total;
  }

  // How many more tokens further levels would bring among the best `most`, if each keeps as much as the newest did.
  double promise(int64_t most, int64_t levels) const {
    const std::vector<int64_t> chosen = best(most);
    const auto in = [&](int64_t one) { return std::find(chosen.begin(), chosen.end(), one) != chosen.end(); };
    double found = 0., before = 0.;
    for (int64_t one = static_cast<int64_t>(newest); one < static_cast<int64_t>(values.size()); ++one)
      if (in(one)) found += std::exp(values[one]);
    for (int64_t one : beam)
      if (in(one)) before += std::exp(values[one]);
    const double share = before != 0. ? std::min(found / before, 1.) : 0.;
    double total = 0.;
    for (int64_t level = 0; level < levels; ++level) total += found = times(found, share);
    return total;
  }
};

// How many of the best candidates, the root not counted, are worth scoring, given their chances and what 0, 1, 2 ... cost.
int64_t worth(const std::vector<double>& chances, const double* costs) {
  double expected = costs[0], most = 0.;
  int64_t best = 0;
  for (size_t i = 0; i < chances.size(); ++i) {
    expected += chances[i];
    const double gain = expected - costs[i + 1];
    if (gain > most) {
      best = i + 1;
      most = gain;
    }
  }
  return best;
}

// How many of each row's best candidates are scored, the root counted, if the likeliest of all rows are that pay.
std::vector<int64_t> spread(const Search& s, const std::vector<Candidates>& rows) {
  std::vector<std::pair<double, size_t>> ranked;  // chances, and the row of each
  for (size_t b = 0; b < rows.size(); ++b)
    for (int64_t one : rows[b].best(s.nodes))
      if (one) ranked.emplace_back(std::exp(rows[b].values[one]), b);
  std::stable_sort(ranked.begin(), ranked.end(), [](const auto& one, const auto& other) { return one.first > other.first; });
  std::vector<double> chances;
  for (const auto& one : ranked) chances.push_back(one.first);
  const int64_t best = worth(chances, s.spread);
  std::vector<int64_t> counts(rows.size(), 1);
  for (int64_t i = 0; i < best; ++i) ++counts[ranked[i].second];
  return counts;
}

// How many of each row's best candidates are scored, the root counted.
std::vector<int64_t> count(const Search& s, const std::vector<Candidates>& rows) {
  std::vector<int64_t> counts(rows.size(), s.nodes);
  if (!s.scores) return counts;
  if (s.spread) return spread(s, rows);
  const double* costs = s.scores + s.taken + 1;
  std::vector<double> sums;
  for (size_t b = 0; b < rows.size(); ++b) {
    std::vector<double> chances;
    for (int64_t one : rows[b].best(s.nodes)) chances.push_back(std::exp(rows[b].values[one]));
    chances.erase(chances.begin());  // the root
    if (!s.together) counts[b] = 1 + worth(chances, costs);
    else if (sums.empty()) sums = chances;
    else
      for (size_t i = 0; i < chances.size(); ++i) sums[i] += chances[i];
  }
  if (s.together) {
    for (double& sum : sums) sum /= static_cast<double>(rows.size());
    std::fill(counts.begin(), counts.end(), 1 + worth(sums, costs));
  }
  return counts;
}

// Ends rows to which a further forward pass, over `levels` levels, brings less than it costs.
void end(const Search& s, std::vector<Candidates>& rows, int64_t levels) {
  const std::vector<int64_t> counts = count(s, rows);
  std::vector<double> gains;
  double total = 0.;
  for (size_t b = 0; b < rows.size(); ++b) {
    gains.push_back(rows[b].promise(counts[b], levels));
    total += gains[b];
  }
  const double many = static_cast<double>(rows.size());
  int64_t all = 0, drafted = 0;  // nodes below the roots, and the rows that have some
  for (int64_t one : counts) {
    all += one - 1;
    drafted += one > 1;
  }
  for (size_t b = 0; b < rows.size(); ++b) {
    const double gain = s.together ? total / many : gains[b];
    const double node = s.spread ? (s.spread[all + drafted] - s.spread[all]) / many
                                 : s.scores[counts[b] + 1] - s.scores[counts[b]];
    rows[b].ended = rows[b].ended || gain <= s.level + node;
  }
}

// The number of nodes of the newest level to go on from in each row: where rows differ in their nodes, no more than are worth
// scoring in any of them.
int64_t next_width(const Search& s, const std::vector<Candidates>& rows) {
  if (!s.spread) return s.width;
  const std::vector<int64_t> counts = count(s, rows);
  int64_t paying = 1;
  for (size_t b = 0; b < rows.size(); ++b) {
    int64_t found = 0;
    for (int64_t one : rows[b].best(counts[b])) found += one >= static_cast<int64_t>(rows[b].newest);
    paying = std::max(paying, found);
  }
  return std::min(paying, s.width);
}

// Writes the trees of the best candidates, their columns standing for the tokens of `support`, or for themselves.
void write(const Search& s, const int64_t* roots, const int64_t* support, const std::vector<Candidates>& rows, int64_t levels,
           Trees* out) {
  const std::vector<int64_t> counts = count(s, rows);
  const int64_t most = *std::max_element(counts.begin(), counts.end());
  const int64_t size = std::min<int64_t>(most, rows[0].values.size());
  out->nodes = size;
  out->levels = std::min(levels, size - 1);
  const int64_t all = rows.size() * size;
  std::memset(out->packed + 3 * all, 0, 2 * all * sizeof(int64_t));
  for (size_t b = 0; b < rows.size(); ++b) {
    const Candidates& row = rows[b];
    std::vector<int64_t> chosen = row.best(size), place(row.values.size(), -1);
    const int64_t kept = std::min(size, counts[b]);  // the others follow them
    std::sort(chosen.begin(), chosen.begin() + kept);
    std::sort(chosen.begin() + kept, chosen.end());
    for (int64_t i = 0; i < size; ++i) place[chosen[i]] = i;
    for (int64_t i = 0; i < size; ++i) {
      const int64_t one = chosen[i], at = b * size + i, column = row.columns[one];
      out->packed[at] = one == 0 ? roots[b] : support ? support[column] : column;
      out->packed[all + at] = one == 0 ? -1 : place[row.parents[one]];
      out->packed[2 * all + at] = i < kept && row.values[one] > -INFINITY;
    }
  }
}

}  // namespace
