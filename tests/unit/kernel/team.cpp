// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What a warp does with a row, one thread a lane, against the host's single thread: the same bits.
#include "belay/kernel/team.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include "belay/core/dtype.hpp"
#include "belay/kernel/losses.hpp"
#include "belay/kernel/rows.hpp"
#include "unit/kernel/support/lanes.hpp"

namespace {

using namespace belay::kernel;
using test::team_of_lanes, test::run_by_lanes;

template <class T>
std::vector<T> wave(std::size_t count, double phase) {
  std::vector<T> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<T>(std::sin(0.7 * static_cast<double>(i) + phase));
  return values;
}

template <class T, unsigned Lanes>
void check_rows(std::size_t width) {
  const std::size_t rows = 2;
  const auto x = wave<T>(rows * width, 0), weight = wave<T>(width, 1), dy = wave<T>(rows * width, 2);
  std::vector<T> one(rows * width), many(rows * width), inverse(rows), same_inverse(rows);
  for_each_row(rows, rms_norm_rows<T>{x.data(), weight.data(), one.data(), inverse.data(), width, T(0.01)});
  run_by_lanes<Lanes>(rows,
                        rms_norm_rows<T>{x.data(), weight.data(), many.data(), same_inverse.data(), width, T(0.01)});
  CHECK(one == many);
  CHECK(inverse == same_inverse);
  for_each_row(rows, rms_norm_rows_backward<T>{x.data(), weight.data(), inverse.data(), dy.data(), one.data(), width});
  run_by_lanes<Lanes>(
      rows, rms_norm_rows_backward<T>{x.data(), weight.data(), inverse.data(), dy.data(), many.data(), width});
  CHECK(one == many);
  one = many = x;
  for_each_row(rows, causal_softmax_rows<T>{one.data(), one.data(), width});
  run_by_lanes<Lanes>(rows, causal_softmax_rows<T>{many.data(), many.data(), width});
  CHECK(one == many);
  const std::vector<std::int32_t> targets = {0, static_cast<std::int32_t>(width - 1)};
  std::vector<double> losses(rows), same_losses(rows);
  for_each_row(rows, cross_entropy_rows<T>{x.data(), targets.data(), losses.data(), one.data(), width, 0.5});
  run_by_lanes<Lanes>(rows,
                        cross_entropy_rows<T>{x.data(), targets.data(), same_losses.data(), many.data(), width, 0.5});
  CHECK(one == many);
  CHECK(losses == same_losses);
}

}  // namespace

TEST_CASE_TEMPLATE("a row gets the same bits from one thread, from 16 lanes and from a warp", T, float, double) {
  for (const std::size_t width : {1u, 15u, 16u, 33u, 100u, 128u, 202u, 300u}) {
    check_rows<T, 16>(width);
    check_rows<T, 32>(width);
  }
}

TEST_CASE("a long row is summed chunk by chunk, to the same bits by one thread, a warp and the warps of a block") {
  static_assert(divided_team<test::block_of_lanes<2>> && !divided_team<team_of_lanes<32>>);
  constexpr std::size_t width = 2 * sum_chunk + 300;
  const auto x = wave<float>(width, 0), weight = wave<float>(width, 1), dy = wave<float>(width, 2);
  CHECK(row_sum(x.data(), width) == row_sum(x.data(), sum_chunk) + row_sum(x.data() + sum_chunk, sum_chunk) +
                                        row_sum(x.data() + 2 * sum_chunk, 300));
  const std::int32_t target = width - 1;
  struct outcome {
    std::vector<float> normed, backward, gradient;
    float inverse = 0;
    double loss = 0;
    bool operator==(const outcome&) const = default;
  };
  const auto by = [&](const auto& run) {
    outcome out{x, x, x};
    const rms_norm_rows<float> norm{x.data(), weight.data(), out.normed.data(), &out.inverse, width, 0.01F};
    CHECK(norm.columns() > sum_chunk);  // so that a device gives it a block
    run(norm);
    run(rms_norm_rows_backward<float>{x.data(), weight.data(), &out.inverse, dy.data(), out.backward.data(), width});
    run(cross_entropy_rows<float>{out.gradient.data(), &target, &out.loss, out.gradient.data(), width, 0.5});
    return out;
  };
  const outcome expected = by([](const auto& kernel) { for_each_row(1, kernel); });
  CHECK(by([](const auto& kernel) { run_by_lanes<32>(1, kernel); }) == expected);
  CHECK(by([](const auto& kernel) { test::run_by_block<2>(1, kernel); }) == expected);
}

TEST_CASE("rows of bf16 and float get the same bits from one thread and from a warp, aligned for packs or not") {
  using belay::bf16;
  const std::size_t rows = 3, used = 2;
  for (const std::size_t width : {std::size_t{7}, std::size_t{8}, std::size_t{72}, std::size_t{328}}) {
    CAPTURE(width);
    const auto narrow = [&](std::size_t count, double phase) {
      std::vector<bf16> out;
      for (const float x : wave<float>(count, phase)) out.emplace_back(x);
      return out;
    };
    const auto check = [&](auto& one, auto& many, const auto& kernel_of) {
      for_each_row(rows, kernel_of(one));
      run_by_lanes<32>(rows, kernel_of(many));
      CHECK(one == many);
    };
    const auto gate_up = narrow(2 * rows * width, 0);
    std::vector<float> wide(rows * width, -1), same_wide = wide;
    check(wide, same_wide, [&](auto& out) {
      return swiglu_rows<bf16, std::size_t, float>{gate_up.data(), out.data(), &used, width};
    });
    std::vector<bf16> in = gate_up, same_in = gate_up, out = narrow(rows * width, 1), same_out = out;
    for_each_row(rows, swiglu_rows_again_backward<bf16, std::size_t>{in.data(), out.data(), &used, width});
    run_by_lanes<32>(rows,
                       swiglu_rows_again_backward<bf16, std::size_t>{same_in.data(), same_out.data(), &used, width});
    CHECK(in == same_in);
    CHECK(out == same_out);
    const auto x = wave<float>(rows * width, 2), dy = wave<float>(rows * width, 3),
               beside = wave<float>(rows * width, 4);
    const auto weight = narrow(width, 5);
    std::vector<float> inverse(rows), y(rows * width), same_y = y;
    check(y, same_y, [&](auto& to) {
      return rms_norm_rows<float, float, bf16>{x.data(), weight.data(), to.data(), inverse.data(), width, 0.01F};
    });
    check(out, same_out, [&](auto& to) {
      return rms_norm_rows<float, bf16, bf16>{x.data(), weight.data(), to.data(), inverse.data(), width, 0.01F};
    });
    check(out, same_out, [&](auto& to) {
      return rotated_rows<float, bf16>{x.data(), to.data(), dy.data(), dy.data() + width, width, rows, 1, 6};
    });
    if (width >= 48)
      check(out, same_out, [&](auto& to) {
        return rotated_rows<float, bf16>{x.data(), to.data(), dy.data(), dy.data() + width, width, rows, 3, 16};
      });
    for (const float* around : {static_cast<const float*>(nullptr), beside.data()})
      check(y, same_y, [&](auto& to) {
        return rms_norm_rows_backward<float, float, float, float, bf16>{
            x.data(), weight.data(), inverse.data(), dy.data(), to.data(), width, around};
      });
    const std::vector<std::int32_t> index{2, 0, 1};
    std::vector<double> losses(rows), same_losses(rows);
    std::vector<bf16> logits = narrow(rows * width, 6), same_logits = logits;
    const std::vector<std::int32_t> targets{1, ignored_target, 3};
    for_each_row(rows,
                 cross_entropy_rows<bf16>{logits.data(), targets.data(), losses.data(), logits.data(), width, 0.5});
    run_by_lanes<32>(rows, cross_entropy_rows<bf16>{same_logits.data(), targets.data(), same_losses.data(),
                                                      same_logits.data(), width, 0.5});
    CHECK(losses == same_losses);
    CHECK(logits == same_logits);
    std::vector<bf16> gathered(rows * width), same_gathered = gathered;
    check(gathered, same_gathered, [&](auto& to) {
      return gather_rows<bf16, std::int32_t>{gate_up.data(), index.data(), to.data(), width};
    });
  }
}

TEST_CASE("a loss has the same bits and gradient from one thread, which also adds the rows, and from a warp a row") {
  const std::size_t count = 35 * sum_chunk + 100;  // 36 rows, of which 32 are added first
  const auto output = wave<float>(count, 0), target = wave<float>(count, 1);
  auto one = output, many = output;  // gradients in place
  findings_record whole, pieces;
  noted_squared_error<float>{one.data(), target.data(), one.data(), count, 3, {&whole, {}}}();
  const noted_squared_error<float> loss{many.data(), target.data(), many.data(), count, 3, {&pieces, {}}};
  REQUIRE(loss.rows() == 36);
  double lanes[sum_lanes], losses[36];
  run_by_lanes<32>(36, losses_of_rows<noted_squared_error<float>>{loss, losses, 0});
  run_by_lanes<32>(1, summed_losses<noted_squared_error<float>>{loss, lanes, losses, 0, 32});
  CHECK(pieces.loss_count == 0);  // not before the last row
  run_by_lanes<32>(1, summed_losses<noted_squared_error<float>>{loss, lanes, losses + 32, 32, 4});
  CHECK(pieces.loss == whole.loss);
  CHECK(pieces.loss_count == 3);
  CHECK(many == one);
  std::vector<double> squares(36), by_warps(36);
  for_each_row(36, chunk_sums_of_squares<float>{output.data(), count, squares.data()});
  run_by_lanes<32>(36, chunk_sums_of_squares<float>{output.data(), count, by_warps.data()});
  CHECK(squares == by_warps);
  CHECK(std::accumulate(squares.begin(), squares.end(), 0.0) == sum_of_squares(output.data(), count));
  double expected = 0;
  for (std::size_t i = 0; i < count; ++i) expected += std::pow(static_cast<double>(output[i] - target[i]), 2);
  CHECK(std::abs(whole.loss - expected) < 1e-6);
}
TEST_CASE("the targets of an evaluation are counted by all lanes") {
  const std::size_t rows = 45, width = 5;
  const auto logits = wave<float>(rows * width, 0);
  std::vector<std::int32_t> targets(rows);
  for (std::size_t i = 0; i < rows; ++i)
    targets[i] = i % 4 == 1 ? ignored_target : static_cast<std::int32_t>(i % width);
  findings_record one, many;
  const auto loss = [&](findings_record& found) {
    return noted_cross_entropy<float>{{logits.data(), targets.data(), nullptr, nullptr, width, 0, {&found, {}}}, rows};
  };
  loss(one)();
  double lanes[sum_lanes], losses[rows];
  run_by_lanes<32>(rows, losses_of_rows<noted_cross_entropy<float>>{loss(many), losses, 0});
  run_by_lanes<32>(1, summed_losses<noted_cross_entropy<float>>{loss(many), lanes, losses, 0, rows});
  CHECK(many.loss == one.loss);
  CHECK(many.loss_count == one.loss_count);
  CHECK(one.loss_count == 34);
}

TEST_CASE("sums of columns have the same bits from one thread, from warps, and from groups that are added afterwards") {
  for (const std::size_t rows : {1u, 63u, 64u, 65u, 200u})
    for (const std::size_t width : {1u, 63u, 128u, 130u, 132u}) {
      CAPTURE(rows);
      CAPTURE(width);
      const auto x = wave<float>(rows * width, 0), dy = wave<float>(rows * width, 1), inverse = wave<float>(rows, 2);
      const std::vector<float> before = wave<float>(width, 3);
      using term = rms_norm_weight_term<float>;
      const auto sums = [&](std::vector<float>& to) {
        return column_sums<term, float>{{x.data(), inverse.data(), dy.data(), width}, to.data(), rows, width};
      };
      std::vector<float> one = before, many = before, grouped = before;
      for_each_row(column_block_count(width), sums(one));
      run_by_lanes<32>(column_block_count(width), sums(many));
      CHECK(many == one);
      const std::size_t groups = row_group_count(rows);
      for (std::size_t first = 0; first < width; first += 64) {
        const std::size_t count = std::min<std::size_t>(64, width - first);
        std::vector<float> partials(groups * count, -1);
        const group_sums<term, float> of_groups{sums(grouped), partials.data(), first, count};
        run_by_lanes<32>(of_groups.indices(), of_groups);
        for_each_index(count, added_groups<float>{grouped.data() + first, partials.data(), count, groups});
      }
      CHECK(grouped == one);
    }
}

TEST_CASE("a kernel without a team and one with are both run row by row") {
  std::vector<std::size_t> seen;
  for_each_row(3, [&seen](std::size_t row) { seen.push_back(row); });
  for_each_row(2, [&seen](const auto& team, std::size_t row) { seen.push_back(10 * row + team.lanes); });
  for_each_row(0, [&seen](std::size_t) { seen.push_back(99); });
  CHECK(seen == std::vector<std::size_t>{0, 1, 2, 1, 11});
}
