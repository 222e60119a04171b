// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "train_moe/arrivals.hpp"

#include <algorithm>
#include <functional>
#include <numeric>
#include <string_view>
#include <tuple>

#include "belay/comm/fingerprint.hpp"
#include "belay/core/hash.hpp"

namespace train_moe {

namespace {

std::size_t kind_of(std::string_view operation) {
  for (std::size_t kind = 1; kind <= static_cast<std::size_t>(belay::last_operation); ++kind)
    if (operation == belay::name(static_cast<belay::operation>(kind))) return kind;
  return 0;
}

}  // namespace

void arrivals::make_room() {
  order_.reserve(calls_ * ranks_);
  last_.resize(most_kinds * ranks_), seconds_.resize(most_kinds * ranks_);
  waits_.reserve(most_kinds);
}

// Transfers between pairs are no calls of a whole group: whom they wait for, the pipeline's bubble says.
void arrivals::note(std::span<const belay::traced_span> spans, std::size_t rank) {
  std::size_t count = 0;
  for (std::size_t i = 0; i < spans.size() && count < calls_; ++i) {
    const belay::traced_span& each = spans[i];
    if (each.kind != belay::span_kind::communication || each.group == 0 || !each.over()) continue;
    const bool pairs = i + 1 < spans.size() &&
                       (spans[i + 1].kind == belay::span_kind::send || spans[i + 1].kind == belay::span_kind::receive);
    if (pairs) continue;
    double* const out = &all_[numbers * (rank * calls_ + count++)];
    // 48 bits that only this operation of this group has: a double holds them.
    out[0] = static_cast<double>(belay::fnv1a(each.group).add_text(each.name).value() >> 16U);
    out[1] = static_cast<double>(each.begin);
    out[2] = static_cast<double>(kind_of(each.name));
  }
}

// All ranks of a group call the same in the same order: the n-th call of one is the n-th of the others.
void arrivals::match() {
  order_.clear(), waits_.clear();
  for (std::size_t rank = 0; rank < ranks_; ++rank) {
    for (std::size_t number = 0; number < calls_; ++number) {
      const double* const of = &all_[numbers * (rank * calls_ + number)];
      if (of[2] > 0) order_.push_back({of[0], number, rank, of[1], static_cast<std::size_t>(of[2])});
    }
  }
  std::ranges::sort(order_, {}, [](const call& of) { return std::tuple(of.which, of.rank, of.number); });
  std::size_t number = 0;
  for (std::size_t i = 0; i < order_.size(); ++i) {
    const bool same = i > 0 && order_[i - 1].which == order_[i].which && order_[i - 1].rank == order_[i].rank;
    order_[i].number = number = same ? number + 1 : 0;
  }
  std::ranges::sort(order_, {}, [](const call& of) { return std::tuple(of.which, of.number, of.rank); });
  counts_.fill(0);
  std::ranges::fill(last_, last_arrivals{});
  std::ranges::fill(seconds_, 0.0);
  for (std::size_t begin = 0, end = 0; begin < order_.size(); begin = end) {
    const auto here = [&] {
      return order_[end].which == order_[begin].which && order_[end].number == order_[begin].number;
    };
    for (end = begin + 1; end < order_.size() && here();) ++end;
    if (end - begin > 1) add(std::span<const call>(order_).subspan(begin, end - begin));
  }
  for (std::size_t kind = 0; kind < counts_.size(); ++kind) {
    if (counts_[kind] == 0) continue;
    const auto last = std::span<const last_arrivals>(last_).subspan(kind * ranks_, ranks_);
    const auto worst = std::ranges::max_element(last, {}, &last_arrivals::seconds);
    waits_.push_back({belay::name(static_cast<belay::operation>(kind)), counts_[kind],
                      static_cast<std::size_t>(worst - last.begin()), worst->calls, worst->seconds,
                      std::span<const double>(seconds_).subspan(kind * ranks_, ranks_)});
  }
  std::ranges::sort(waits_, std::greater(), [](const belay::report_wait& of) {
    return std::accumulate(of.seconds.begin(), of.seconds.end(), 0.0);
  });
}

void arrivals::add(std::span<const call> together) {
  const call& last = *std::ranges::max_element(together, {}, &call::begin);
  const std::size_t row = last.kind * ranks_;
  double all = 0;
  for (const call& each : together) {
    const double waited = 1e-9 * (last.begin - each.begin);
    seconds_[row + each.rank] += waited;
    all += waited;
  }
  ++counts_[last.kind];
  ++last_[row + last.rank].calls;
  last_[row + last.rank].seconds += all;
}

}  // namespace train_moe
