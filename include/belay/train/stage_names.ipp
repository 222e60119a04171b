// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Tensors that two stages call alike, found and said.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "belay/comm/communicator.hpp"
#include "belay/comm/reduction.hpp"
#include "belay/core/error.hpp"
#include "belay/core/hash.hpp"
#include "belay/core/printable.hpp"
#include "belay/train/safetensors/file_agreement.hpp"
#include "belay/train/stage_names.hpp"

namespace belay::inline BELAY_ABI {

BELAY_DECL std::string stage_text(const axes& shape, int stage) {
  std::vector<int> ranks;
  for (int rank = 0; rank < static_cast<int>(shape.ranks()); ++rank)
    if (coordinate_of(shape, rank).pipeline == stage) ranks.push_back(rank);
  return "stage " + std::to_string(stage) + " (" + ranks_text(ranks) + ")";
}

BELAY_DECL std::uint64_t sum_of_elements(std::uint64_t kind, std::uint64_t first, std::span<const std::byte> values,
                                         std::size_t element_bytes) noexcept {
  std::uint64_t out = 0;
  for (std::size_t i = 0; i * element_bytes < values.size(); ++i) {
    std::uint64_t word = 0;
    std::memcpy(&word, values.data() + i * element_bytes, element_bytes);
    out += content_hash().add(kind).add(first + i).add(word).value();
  }
  return out;
}

BELAY_DECL void expect_one_value(const axes& shape, std::string_view tensor, std::span<const int> stages,
                                 std::span<const std::uint64_t> sums, where at) {
  for (std::size_t i = 1; i < stages.size(); ++i)
    if (sums[i] != sums[0])
      throw usage_error(stage_text(shape, stages[0]) + " and " + stage_text(shape, stages[i]) +
                            " of the pipeline have different tensors called " + printable(std::string(tensor)) +
                            ", of which a file keeps one: number layers over the whole model, so that each has a name "
                            "of its own",
                        at);
}

BELAY_DECL void stage_names::add(listing one) { listings_.push_back(std::move(one)); }

BELAY_DECL std::uint64_t stage_names::hash_of(const std::string& name) noexcept {
  return content_hash().add_text(name).value() | 1U;
}

BELAY_DECL std::vector<std::uint64_t> stage_names::words() const {
  std::vector<std::uint64_t> out;
  for (const listing& each : listings_)
    for (const std::uint64_t next : {hash_of(each.name), std::uint64_t{each.trained}, std::uint64_t{each.uses},
                                     std::uint64_t{each.stage}, each.shape, each.decay})
      out.push_back(next);
  return out;
}

BELAY_DECL std::vector<tied_name> stage_names::ties_of_rehearsal(const mesh& mesh) const {
  const int ranks = mesh.shape().pipeline, own = mesh.layout_coordinate().pipeline;
  std::map<std::uint64_t, std::size_t> others;  // uses elsewhere
  for (const listing& each : listings_) {
    if (each.uses == 0 || !each.trained || ranks == 1) continue;
    std::size_t& left = others.emplace(hash_of(each.name), each.uses).first->second;
    if (left > 0) --left;
  }
  std::vector<tied_name> out;
  for (const auto& [name, left] : others) {
    tied_name one{name, {own}};
    for (int next = 1; next < ranks && one.ranks.size() <= left; ++next) one.ranks.push_back((own + next) % ranks);
    if (one.ranks.size() > 1) out.push_back(std::move(one));
  }
  return out;
}

BELAY_DECL std::vector<tied_name> stage_names::find_ties(const mesh& mesh, where at) const {
  if (is_rehearsed(mesh.world())) return ties_of_rehearsal(mesh);
  std::vector<std::uint64_t> own = words();
  std::vector<std::uint64_t> all = own;
  std::size_t room = own.size();
  const group& pipeline = mesh.pipeline(at);
  const auto& stages = control_of(pipeline);
  if (stages.size() > 1) {
    std::uint64_t most[] = {room};
    stages.all_reduce(std::span<std::uint64_t>(most), maximum, at);
    room = static_cast<std::size_t>(most[0]);
    own.resize(room);
    all.assign(room * static_cast<std::size_t>(stages.size()), none);
    if (room > 0) stages.all_gather(std::span<const std::uint64_t>(own), std::span<std::uint64_t>(all), at);
  }
  std::map<std::uint64_t, std::vector<found_listing>> by_name;
  for (std::size_t i = 0; i < all.size(); i += words_each)
    if (all[i] != none)
      by_name[all[i]].push_back(
          {static_cast<int>(i / room), i % room / words_each, std::span(all).subspan(i, words_each)});
  std::vector<tied_name> out;
  for (auto& [name, listings] : by_name) {
    if (const found_problem problem = problem_with(mesh.shape(), listings); problem.what != mismatch::none) {
      const found_listing& last = listings.back();
      const std::string text = safetensors::broadcast_text(
          stages, stages.rank() == last.rank ? printable(listings_[last.number].name) : std::string(), last.rank, at);
      refuse(mesh.shape(), problem, listings, text, at);
    }
    if (listings.front().words[uses_word] == 0 || listings.front().words[trained_word] == 0) continue;
    std::sort(listings.begin(), listings.end(), [](const found_listing& left, const found_listing& right) {
      return left.words[stage_word] < right.words[stage_word];
    });
    tied_name one{name, {}};
    for (const found_listing& each : listings)
      if (std::find(one.ranks.begin(), one.ranks.end(), each.rank) == one.ranks.end()) one.ranks.push_back(each.rank);
    if (one.ranks.size() > 1) out.push_back(std::move(one));
  }
  return out;
}

BELAY_DECL auto stage_names::problem_with(const axes& shape, std::span<const found_listing> listings) -> found_problem {
  const found_listing& first = listings.front();
  for (const found_listing& each : listings) {
    const auto differs = [&](word which) { return each.words[which] != first.words[which]; };
    if (first.words[uses_word] == 0 && each.words[uses_word] == 0) {
      const bool one_trains = (first.words[trained_word] | each.words[trained_word]) != 0;
      if (each.rank != first.rank && one_trains) return {mismatch::not_tied, each.rank, ""};
      continue;
    }
    if (differs(uses_word)) return {mismatch::declarations, each.rank, "uses"};
    if (differs(trained_word)) return {mismatch::declarations, each.rank, "training"};
    if (differs(shape_word)) return {mismatch::declarations, each.rank, "shape or placement"};
    if (differs(decay_word)) return {mismatch::declarations, each.rank, "weight decay"};
  }
  const auto uses = static_cast<std::size_t>(first.words[uses_word]);
  const bool one_stage = shape.pipeline == 1 && listings.size() == 1;  // has all uses
  if (uses == 0 || one_stage || uses == listings.size()) return {};
  return {mismatch::count, first.rank, ""};
}

BELAY_DECL void stage_names::refuse(const axes& shape, const found_problem& problem,
                                    std::span<const found_listing> listings, const std::string& name, where at) {
  const std::string both = stage_text(shape, listings.front().rank) + " and " + stage_text(shape, problem.rank);
  if (problem.what == mismatch::not_tied)
    throw usage_error(both + " of the pipeline both have a parameter " + name +
                          ", and would train it apart, while files have one tensor of a name: number layers over "
                          "the whole model; a weight that stages share says so on each of them, {.uses = 2, .tied = "
                          "belay::tied_over::stages}",
                      at);
  if (problem.what == mismatch::declarations)
    throw usage_error(both + " declare parameter " + name + ", which is tied over stages, with different " +
                          problem.different + ": give it one specification on all of them",
                      at);
  std::string stages;
  for (const found_listing& each : listings) stages += (stages.empty() ? "" : ", ") + stage_text(shape, each.rank);
  throw usage_error("parameter " + name + " is tied over " +
                        std::to_string(static_cast<std::size_t>(listings.front().words[uses_word])) +
                        " stages of the pipeline, and " + std::to_string(listings.size()) + " list it: " + stages +
                        "; each stage that uses it lists it, and uses says how many do",
                    at);
}

}  // namespace belay::inline BELAY_ABI
