// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Rules by name.
#pragma once

#include <algorithm>
#include <array>
#include <charconv>
#include <string>
#include <utility>
#include <vector>

#include "belay/core/error.hpp"
#include "belay/parallel/schedule/catalogue.hpp"
#include "belay/parallel/schedule/v_patterns.hpp"
#include "belay/parallel/schedule/zero_bubble.hpp"

namespace belay::inline BELAY_ABI {
namespace schedule {

BELAY_DECL std::span<const named_schedule::named_family> named_schedule::families() noexcept {
  static constexpr std::array<named_family, 12> all = {{{"gpipe", family::gpipe, false},
                                                        {"1f1b", family::one_f_one_b, false},
                                                        {"interleaved", family::interleaved, true},
                                                        {"bfs", family::breadth_first, true},
                                                        {"interleaved-zb", family::interleaved_zero_bubble, true},
                                                        {"zb-h1", family::zb_h1, false},
                                                        {"zb-h2", family::zb_h2, false},
                                                        {"zb-v", family::zb_v, false},
                                                        {"v-half", family::v_half, false},
                                                        {"v-min", family::v_min, false},
                                                        {"dualpipe-v", family::dualpipe_v, false},
                                                        {"dualpipe-v:atomic", family::dualpipe_v_atomic, false}}};
  return all;
}

BELAY_DECL std::vector<std::string> named_schedule::names(std::size_t most_chunks) {
  std::vector<std::string> all;
  for (const named_family& each : families()) {
    if (!each.counts_chunks) all.emplace_back(each.name);
    for (std::size_t chunks = 2; each.counts_chunks && chunks <= most_chunks; ++chunks)
      all.push_back(std::string(each.name) + ":" + std::to_string(chunks));
  }
  return all;
}

BELAY_DECL named_schedule named_schedule::of(std::string_view name, where at) {
  std::string_view rest = name;
  const auto next_part = [&] {
    const std::size_t end = rest.find(':');
    const std::string_view part = rest.substr(0, end);
    rest = end == std::string_view::npos ? std::string_view() : rest.substr(end + 1);
    return part;
  };
  const auto number = [](std::string_view text, std::size_t& value) {
    const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), value);
    return failed == std::errc() && end == text.data() + text.size() && value > 0 && value <= most_stages;
  };
  const std::span<const named_family> all = families();
  const std::string_view first = name == all.back().name ? std::exchange(rest, {}) : next_part();
  const auto found = std::find_if(all.begin(), all.end(), [&](const named_family& each) { return each.name == first; });
  std::size_t chunks = 1, group = 0;
  bool known = found != all.end() && found->counts_chunks == !rest.empty() && !name.ends_with(':');
  if (known && found->counts_chunks) {
    known = number(next_part(), chunks);
    if (known && !rest.empty()) known = found->of == family::interleaved && number(next_part(), group);
  }
  if (!known || !rest.empty())
    throw input_error("'" + std::string(name.substr(0, 40)) +
                          "' is no schedule; there are gpipe, 1f1b, interleaved:V[:G], bfs:V, interleaved-zb:V, zb-h1, "
                          "zb-h2, zb-v, v-half, v-min and dualpipe-v[:atomic], with V chunks a rank",
                      at);
  return {std::string(name), found->of, chunks, group};
}

template <class Use>
decltype(auto) named_schedule::with_rule(const Use& use) const {
  switch (family_) {
    case family::gpipe: return use(gpipe_rule{});
    case family::one_f_one_b: return use(one_f_one_b_rule{});
    case family::interleaved: return use(interleaved_rule{chunks_, group_});
    case family::breadth_first: return use(breadth_first_rule{chunks_});
    case family::interleaved_zero_bubble: return use(interleaved_zero_bubble_rule{chunks_});
    case family::zb_h1: return use(zb_h1_rule{});
    case family::zb_h2: return use(zb_h2_rule{});
    case family::zb_v: return use(zb_v_rule{});
    case family::v_half: return use(v_half_rule{});
    case family::v_min: return use(v_min_rule{});
    case family::dualpipe_v: return use(dualpipe_v_rule{});
    case family::dualpipe_v_atomic: break;
  }
  return use(dualpipe_v_atomic_rule{});
}

BELAY_DECL placement named_schedule::placed() const {
  return with_rule([](const auto& rule) { return placed_by(rule); });
}

BELAY_DECL std::size_t named_schedule::least_micro_batches(std::size_t ranks) const {
  return with_rule([&](const auto& rule) { return schedule::least_micro_batches(rule, ranks); });
}

BELAY_DECL void named_schedule::expect_group(std::size_t ranks, std::size_t micro_batches, where at) const {
  if (group_ != 0 && group_ < ranks && group_ < micro_batches)
    throw usage_error("schedule " + name_ + " has groups of " + std::to_string(group_) + " micro-batches on " +
                          std::to_string(ranks) + " ranks: at least one for each rank",
                      at);
}

BELAY_DECL dynamic_table named_schedule::table(std::size_t ranks, std::size_t micro_batches, where at) const {
  expect_group(ranks, micro_batches, at);
  return with_rule([&](const auto& rule) { return generate(rule, ranks, micro_batches, at); });
}

BELAY_DECL compute_lists named_schedule::lists(std::size_t ranks, std::size_t micro_batches, where at) const {
  expect_group(ranks, micro_batches, at);
  return with_rule([&](const auto& rule) {
    expect_sizes(rule, ranks, micro_batches, at);
    return lists_of(rule, ranks, micro_batches);
  });
}

BELAY_DECL dynamic_table named_table(std::string_view name, std::size_t ranks, std::size_t micro_batches, where at) {
  return named_schedule::of(name, at).table(ranks, micro_batches, at);
}

}  // namespace schedule
}  // namespace belay::inline BELAY_ABI
