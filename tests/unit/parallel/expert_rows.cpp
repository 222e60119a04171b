// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The kernels that move rows, beside plain loops, bit for bit; and how many bytes they send.
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "belay/backend/host.hpp"
#include "belay/kernel/non_temporal.hpp"
#include "belay/parallel/experts.hpp"
#include "unit/kernel/support/lanes.hpp"
#include "unit/parallel/support/expert_fixture.hpp"

namespace {

// Two owners of two experts each, one slot of which every (token, j) has a row of its own, but every fifth has none.
// Those of the second lie behind those of the first.
template <class T>
struct slots_of {
  std::size_t tokens, k, hidden;
  std::vector<std::int32_t> choices, places;
  std::vector<T> rows, weights;

  slots_of(std::size_t token_count, std::size_t choice_count, std::size_t width)
      : tokens(token_count), k(choice_count), hidden(width), rows(2 * token_count * k * hidden) {
    for (std::size_t i = 0; i < tokens * k; ++i) {
      choices.push_back(static_cast<std::int32_t>((i * 7) % 4));
      places.push_back(i % 5 == 4 ? belay::no_place : static_cast<std::int32_t>(i));
      weights.push_back(static_cast<T>(1 + i % 11) / T(7));
    }
    for (std::size_t i = 0; i < rows.size() / 2; ++i) {
      rows[i] = static_cast<T>(i % 1013) / T(3);
      rows[rows.size() / 2 + i] = static_cast<T>(i % 911) / T(9);
    }
  }
  [[nodiscard]] T* of_owner(std::size_t owner) { return rows.data() + owner * rows.size() / 2; }
  [[nodiscard]] belay::placed_rows<T> view() {
    return {rows.data(), rows.size() / 2 * sizeof(T), choices.data(), places.data(), 2, k, hidden};
  }
};

template <class T>
void sums_equal_a_plain_loop() {
  for (std::size_t k : std::vector<std::size_t>{1, 2, 8, 17, 40}) {
    for (std::size_t hidden : std::vector<std::size_t>{1, 15, 16, 31, 32, 33, 64, 100}) {
      slots_of<T> given(3, k, hidden);
      const auto slots = given.view();
      std::vector<T> weighted(3 * hidden, T(-1)), plain(3 * hidden, T(-1));
      for (std::size_t token = 0; token < 3; ++token) {
        belay::pulled_rows<T, T>{slots, given.weights.data(), weighted.data()}(belay::kernel::solo{}, token);
        belay::pulled_rows<T, T>{slots, nullptr, plain.data()}(belay::kernel::solo{}, token);
      }
      bool equal = true;
      for (std::size_t token = 0; token < 3; ++token) {
        for (std::size_t i = 0; i < hidden; ++i) {
          T a = 0, b = 0;
          bool begun = false;
          for (std::size_t j = 0; j < k; ++j) {
            const T* row = slots.row(token * k + j);
            if (row == nullptr) continue;
            const T term = given.weights[token * k + j] * row[i];
            a = begun ? a + term : term;
            b = begun ? b + row[i] : row[i];
            begun = true;
          }
          equal = equal && weighted[token * hidden + i] == a && plain[token * hidden + i] == b;
        }
      }
      INFO(k << " choices, rows of " << hidden);
      CHECK(equal);
    }
  }
}

}  // namespace

TEST_CASE("sums of rows are those of a plain loop, in its order, whatever the width and the choices") {
  sums_equal_a_plain_loop<float>();
  sums_equal_a_plain_loop<double>();
}

// The gradients of weights, and the rows, by one thread and by 16.
TEST_CASE_TEMPLATE("rows are weighed and returned with the same bits by a host and by a team of lanes", T, float,
                   double) {
  for (std::size_t hidden : std::vector<std::size_t>{1, 15, 16, 33, 100}) {
    CAPTURE(hidden);
    slots_of<T> one(3, 2, hidden), many = one;
    std::vector<T> dy(3 * hidden), of_one(6, T(-1)), of_many(6, T(-1));
    for (std::size_t i = 0; i < dy.size(); ++i) dy[i] = static_cast<T>(i % 17) / T(3) - T(2);
    belay::kernel::for_each_row(6, belay::returned_rows<T>{one.view(), one.weights.data(), dy.data(), of_one.data()});
    test::run_by_lanes<16>(6, belay::returned_rows<T>{many.view(), many.weights.data(), dy.data(), of_many.data()});
    CHECK(of_one == of_many);
    CHECK(one.rows == many.rows);
    std::vector<T> x(3 * hidden), y = x;
    belay::kernel::for_each_row(3, belay::pulled_rows<T, T>{one.view(), one.weights.data(), x.data()});
    test::run_by_lanes<16>(3, belay::pulled_rows<T, T>{one.view(), one.weights.data(), y.data()});
    CHECK(x == y);
    belay::kernel::for_each_row(6, belay::pushed_rows<T>{one.view(), dy.data()});
    test::run_by_lanes<16>(6, belay::pushed_rows<T>{many.view(), dy.data()});
    CHECK(one.rows == many.rows);
  }
}

TEST_CASE("rows of bf16 are moved and summed with the same bits by a host and by a warp, aligned for packs or not") {
  using belay::bf16;
  for (const std::size_t hidden : {std::size_t{7}, std::size_t{8}, std::size_t{72}}) {
    CAPTURE(hidden);
    slots_of<float> of(5, 7, hidden);  // choices and places
    std::vector<bf16> rows, dy, many_rows;
    for (const float x : of.rows) rows.emplace_back(x / 64);
    for (std::size_t i = 0; i < 5 * hidden; ++i) dy.emplace_back(static_cast<float>(i % 19) / 4 - 2);
    many_rows = rows;
    const auto view = [&](std::vector<bf16>& all) {
      return belay::placed_rows<bf16>{
          all.data(), all.size() / 2 * sizeof(bf16), of.choices.data(), of.places.data(), 2, 7, hidden};
    };
    std::vector<float> one(5 * hidden), many = one, weights(35, -1), many_weights = weights;
    std::vector<bf16> narrow(5 * hidden), many_narrow = narrow;
    belay::kernel::for_each_row(5, belay::pulled_rows<bf16, float>{view(rows), of.weights.data(), one.data()});
    test::run_by_lanes<32>(5, belay::pulled_rows<bf16, float>{view(rows), of.weights.data(), many.data()});
    CHECK(one == many);
    std::vector<float> around(5 * hidden), beside = one;  // what goes around the experts is added last
    for (std::size_t i = 0; i < around.size(); ++i) around[i] = static_cast<float>(i % 13) / 3 - 2;
    for (std::size_t i = 0; i < around.size(); ++i) beside[i] += around[i];
    belay::kernel::for_each_row(
        5, belay::pulled_rows<bf16, float>{view(rows), of.weights.data(), one.data(), around.data()});
    test::run_by_lanes<32>(
        5, belay::pulled_rows<bf16, float>{view(rows), of.weights.data(), many.data(), around.data()});
    CHECK(one == beside);
    CHECK(many == beside);
    belay::kernel::for_each_row(5, belay::pulled_rows<bf16, bf16>{view(rows), nullptr, narrow.data()});
    test::run_by_lanes<32>(5, belay::pulled_rows<bf16, bf16>{view(rows), nullptr, many_narrow.data()});
    CHECK(narrow == many_narrow);
    belay::kernel::for_each_row(
        35, belay::returned_rows<bf16, float>{view(rows), of.weights.data(), one.data(), weights.data()});
    test::run_by_lanes<32>(
        35, belay::returned_rows<bf16, float>{view(many_rows), of.weights.data(), one.data(), many_weights.data()});
    CHECK(weights == many_weights);
    CHECK(rows == many_rows);
    belay::kernel::for_each_row(35, belay::pushed_rows<bf16>{view(rows), dy.data()});
    test::run_by_lanes<32>(35, belay::pushed_rows<bf16>{view(many_rows), dy.data()});
    CHECK(rows == many_rows);
  }
}

TEST_CASE("offsets are the sums of the counts before each expert, cut at the capacity, by a host and by a warp") {
  for (const std::size_t experts : std::vector<std::size_t>{1, 2, 31, 32, 33, 100}) {
    CAPTURE(experts);
    std::vector<std::int64_t> counts, of_one(experts), of_many(experts);
    for (std::size_t e = 0; e < experts; ++e) counts.push_back(static_cast<std::int64_t>(e * 5 % 7));
    std::vector<std::size_t> expected{0}, one(experts + 1, 99), many = one;
    const std::size_t capacity = 3 * experts / 2;
    std::size_t sum = 0;
    for (const std::int64_t count : counts) {
      sum += static_cast<std::size_t>(count);
      expected.push_back(std::min(sum, capacity));
    }
    belay::kernel::for_each_row(1, belay::counted_offsets{counts.data(), of_one.data(), one.data(), experts, capacity});
    test::run_by_lanes<32>(1, belay::counted_offsets{counts.data(), of_many.data(), many.data(), experts, capacity});
    CHECK(one == expected);
    CHECK(many == expected);
    CHECK(of_one == counts);
    CHECK(of_many == counts);
  }
}

TEST_CASE("a token without any place gets zeros") {
  slots_of<float> given(1, 2, 33);
  given.places = {belay::no_place, belay::no_place};
  std::vector<float> y(33, 1);
  belay::pulled_rows<float, float>{given.view(), given.weights.data(), y.data()}(belay::kernel::solo{}, 0);
  for (float value : y) CHECK(value == 0);
}

TEST_CASE("rows are pushed to their places and nowhere else, through the caches and around them") {
  for (const bool non_temporal : {false, true}) {
    for (std::size_t hidden : std::vector<std::size_t>{1, 3, 4, 16, 20, 65}) {
      slots_of<float> given(4, 3, hidden);
      const slots_of<float> before = given;
      std::vector<float> x(4 * hidden);
      for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i) + 0.25F;
      const auto slots = given.view();
      const belay::pushed_rows<float> pushed{slots, x.data(), non_temporal};
      belay::kernel::for_each_row(12, pushed);
      pushed.finish();
      slots_of<float> expected = before;
      for (std::size_t i = 0; i < 12; ++i) {
        if (given.places[i] == belay::no_place) continue;
        const auto owner = static_cast<std::size_t>(given.choices[i]) / 2;
        const std::size_t first = static_cast<std::size_t>(given.places[i]) * hidden;
        for (std::size_t h = 0; h < hidden; ++h) expected.of_owner(owner)[first + h] = x[i / 3 * hidden + h];
      }
      CHECK(given.rows == expected.rows);
    }
  }
}

TEST_CASE("a copy around the caches copies what it is given, aligned or not") {
  alignas(64) char from[300], to[300];
  for (int i = 0; i < 300; ++i) from[i] = static_cast<char>(i);
  for (std::size_t offset : std::vector<std::size_t>{0, 1, 16}) {
    for (std::size_t bytes : std::vector<std::size_t>{0, 1, 15, 16, 64, 80, 127, 128, 208}) {
      for (char& c : to) c = 'x';
      belay::kernel::copy_non_temporal(to + offset, from + 3, bytes);
      belay::kernel::finish_non_temporal();
      bool equal = true;
      for (std::size_t i = 0; i < 300; ++i)
        equal = equal && to[i] == (i >= offset && i < offset + bytes ? from[3 + i - offset] : 'x');
      INFO(bytes << " bytes to offset " << offset);
      CHECK(equal);
    }
  }
}

namespace {

// Threads that send each other's rows in messages, as ranks of MPI do, and count them.
class posting_group final : public belay::group_interface {
 public:
  // `sent` counts bytes of rows.
  posting_group(const belay::group& ranks, std::size_t* sent)
      : group_interface(ranks.rank(), ranks.size(), own_traits(ranks)), ranks_(ranks), sent_(sent) {}

  [[nodiscard]] int rank() const override { return ranks_.rank(); }
  [[nodiscard]] std::span<const int> members() const override { return ranks_.members(); }
  void run(const belay::op_call& call) override {
    for (const belay::p2p& one : call.exchanged())
      if (one.kind == belay::p2p::direction::send) *sent_ += rows_in({static_cast<std::byte*>(one.data), one.bytes});
    ranks_.run_call(call);
  }
  [[nodiscard]] belay::pending start(const belay::op_call& call, const belay::start_order& how) override {
    return ranks_.start_call(call, how);
  }
  [[nodiscard]] belay::pending start_composite(belay::operation, const belay::borrowed_work<const belay::group_calls&>&,
                                               const belay::start_order& how) override {
    throw belay::usage_error("this test moves rows at once", how.at);
  }
  [[nodiscard]] belay::pending start_local(belay::operation, const belay::borrowed_work<void*>&,
                                           const belay::start_order& how) override {
    throw belay::usage_error("this test moves rows at once", how.at);
  }
  [[nodiscard]] belay::symmetric_region make_symmetric(std::size_t bytes, belay::where at) override {
    return belay::symmetric_region::map(size(), bytes, belay::backing::when_touched, at);
  }
  [[nodiscard]] std::shared_ptr<group_interface> within(std::chrono::duration<double>, belay::where) override {
    return std::make_shared<posting_group>(ranks_, sent_);
  }
  void trace_into(belay::span_log*, belay::where) override {}

 private:
  static belay::group_traits own_traits(const belay::group& ranks) {
    belay::group_traits out = ranks.traits();
    out.addresses_peers = false;
    out.mirrors_peers = true;
    return out;
  }
  // Ranges, each after 24 bytes that say where it goes and, last, how long it is; or how long such a message is.
  static std::size_t rows_in(std::span<const std::byte> message) {
    std::size_t bytes = 0;
    for (std::size_t place = 0; place + 24 <= message.size();) {
      std::uint64_t range = 0;
      std::memcpy(&range, message.data() + place + 16, sizeof range);
      bytes += range;
      place += 24 + range;
    }
    return bytes;
  }

  belay::group ranks_;
  std::size_t* sent_;
};

// Experts that change nothing. A loop beside the handles would be one more branch for Clang to follow.
template <class T>
void copy_rows(belay::view<const T, 2> from, belay::view<T, 2> to, std::span<const std::size_t> offsets) {
  std::copy_n(from.data(), offsets.back() * from.extent(1), to.data());
}

// Bytes that rank `of` of two sends in the four moves of a dispatch.
template <class T>
std::size_t bytes_of_moves(int of) {
  constexpr std::size_t rows = 9, hidden = 17, experts = 4, k = 2;
  std::size_t sent[2] = {};
  belay::host::world{2}.run([&](belay::host::rank& rank) {
    const belay::group ranks(std::make_shared<posting_group>(rank.world(), &sent[rank.number()]));
    toy::expert_fixture<T> here(ranks, {experts, k, hidden, 40});
    std::vector<T> x(rows * hidden, T(1.0F)), y, dx;
    const belay::view<const T, 2> input{x.data(), {rows, hidden}};
    std::vector<float> logits(rows * experts), dweights;
    for (std::size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>(i * 7 % 11);
    auto frame = here.begin(belay::frame_mode::owing);
    const auto routed = belay::route<float>(frame, toy::matrix(logits, rows, experts), k);
    auto there = here.exchange.dispatch(frame, input, routed);
    copy_rows(there.rows(), there.outputs(), there.offsets());
    auto merged = std::move(there).combine(frame, toy::matrix(y, rows, hidden));
    auto back = std::move(merged).backward(frame, input, toy::matrix(dweights, rows, k));
    copy_rows(back.output_gradients(), back.row_gradients(), back.offsets());
    std::move(back).finish(frame, toy::matrix(dx, rows, hidden));
    here.end();
  });
  return sent[of];
}

}  // namespace

TEST_CASE("rows of bf16 are half the bytes of float on their way to experts and back") {
  for (const int rank : {0, 1}) {
    const std::size_t wide = bytes_of_moves<float>(rank);
    CHECK(wide > 0);
    CHECK(bytes_of_moves<belay::bf16>(rank) == wide / 2);
  }
}
