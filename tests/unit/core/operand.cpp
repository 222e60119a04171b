// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/core/operand.hpp"

#include <doctest/doctest.h>

TEST_CASE("an operand is a view of two dimensions, a part of one, or one read transposed") {
  float values[24] = {};
  for (int i = 0; i < 24; ++i) values[i] = static_cast<float>(i);
  const belay::operand<float> whole = belay::view<float, 2>{values, {4, 6}};
  const belay::operand<const float> part = whole.row_range(1, 2).column_range(2, 3);
  CHECK(part.height() == 2);
  CHECK(part.width() == 3);
  CHECK(part.row(1)[2] == 16);
  const auto turned = belay::transposed(part);
  CHECK(turned.height() == 3);
  CHECK(turned.width() == 2);
  CHECK(turned.data == part.data);
  CHECK(belay::transposed(turned).as == belay::reading::as_is);
}

TEST_CASE("a stack is a view of three dimensions, and its parts are matrices") {
  double values[24] = {};
  const belay::operand_stack<const double> stack = belay::view<double, 3>{values, {4, 2, 3}};
  CHECK(stack.count == 4);
  CHECK(stack[2].data == values + 12);
  CHECK(belay::transposed(stack)[1].height() == 3);
  CHECK(belay::transposed(stack).width() == 2);
}
