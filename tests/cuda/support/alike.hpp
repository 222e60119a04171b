// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <limits>
#include <vector>

namespace test {

/// How far numbers of two runs are apart, in the mean, of what they are. Not finite where one has another number of
/// them.
template <class Number>
double apart(const std::vector<Number>& expected, const std::vector<Number>& got) {
  double differ = expected.size() == got.size() ? 0 : std::numeric_limits<double>::infinity(), all = 0;
  for (std::size_t i = 0; i < expected.size() && i < got.size(); ++i) {
    differ += std::abs(static_cast<double>(expected[i]) - static_cast<double>(got[i]));
    all += std::abs(static_cast<double>(expected[i]));
  }
  return differ == 0 ? 0 : differ / all;
}

/// Whether they are alike, which is said. A card owes equal bits of equal calls alone: products may be added in another
/// order where operands lie at other addresses, and AdamW turns such noise into steps of a few elements. What was read
/// too early, or from another place, is further apart by orders.
template <class Number>
bool alike(const char* what, const std::vector<Number>& expected, const std::vector<Number>& got, double tolerance) {
  const double differ = apart(expected, got);
  const bool ok = differ <= tolerance;  // not of what is not finite
  if (expected == got)
    std::printf("%s: the same bits\n", what);
  else
    std::printf("%s: apart by %g, %s %g\n", what, differ, ok ? "within" : "WRONG: more than", tolerance);
  return ok;
}

}  // namespace test
