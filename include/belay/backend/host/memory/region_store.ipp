// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The regions of a world, and the ranks that hold each.
#pragma once

#include <algorithm>
#include <iterator>
#include <string>

#include "belay/backend/host/memory/memory_segment.hpp"
#include "belay/backend/host/memory/region_store.hpp"
#include "belay/core/error.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

[[gnu::cold]] BELAY_DECL std::uint64_t region_store::keep(unique_fd file, std::size_t bytes, int rank) {
  entry added;
  added.file = std::move(file);
  added.bytes = bytes;
  added.holders.push_back(rank);
  const std::uint64_t region = next_++;
  regions_.emplace(region, std::move(added));
  return region;
}

[[gnu::cold]] BELAY_DECL const region_store::entry* region_store::add(std::uint64_t region, int rank) {
  const auto found = regions_.find(region);
  if (found == regions_.end()) return nullptr;
  found->second.holders.push_back(rank);
  return &found->second;
}

[[gnu::cold]] BELAY_DECL bool region_store::drop(std::uint64_t region, int rank) {
  const auto found = regions_.find(region);
  if (found == regions_.end()) return false;
  std::vector<int>& holders = found->second.holders;
  const auto mine = std::find(holders.begin(), holders.end(), rank);
  if (mine == holders.end()) return false;
  holders.erase(mine);
  if (holders.empty()) regions_.erase(found);
  return true;
}

[[gnu::cold]] BELAY_DECL void region_store::forget(int rank) {
  for (auto next = regions_.begin(); next != regions_.end();) {
    std::vector<int>& holders = next->second.holders;
    holders.erase(std::remove(holders.begin(), holders.end(), rank), holders.end());
    next = holders.empty() ? regions_.erase(next) : std::next(next);
  }
}

[[gnu::cold]] BELAY_DECL std::pair<message, int> region_store::answer(int rank, received request) {
  message says;
  says.ticket = request.said.ticket;
  says.rank = rank;
  const std::uint64_t region = request.said.numbers[0];
  int file = -1;
  const auto no = [&](const std::string& words) { return refused(says.ticket, refusal::words, words); };
  if (request.said.kind == message_kind::keep) {
    if (!request.file) return {no(no_file_text(request)), -1};
    try {
      const std::size_t bytes = memory_segment::sealed_size(request.file.get());
      says.kind = message_kind::kept;
      says.numbers = {keep(std::move(request.file), bytes, rank), bytes, 0};
    } catch (const file_error& wrong) {
      return {no(wrong.what()), -1};
    }
  } else if (request.said.kind == message_kind::attach) {
    const entry* const found = add(region, rank);
    if (found == nullptr) return {no("there is no region " + std::to_string(region)), -1};
    says.kind = message_kind::attached;
    says.numbers = {region, found->bytes, 0};
    file = found->file.get();
  } else {
    if (!drop(region, rank)) return {no("region " + std::to_string(region) + " is not held"), -1};
    says.kind = message_kind::dropped;
  }
  return {std::move(says), file};
}

}  // namespace host
}  // namespace belay::inline BELAY_ABI
