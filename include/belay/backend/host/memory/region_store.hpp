// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The segments that a world's processes share, kept so that they outlive the one that made them and go with the
// last that has them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "belay/backend/host/bootstrap/messages.hpp"
#include "belay/backend/host/memory/memory_segment.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/unique_fd.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// Segments by number; who has each, as often as he took it. A number is never given twice.
class region_store {
 public:
  struct entry {
    unique_fd file;
    std::size_t bytes = 0;
    std::vector<int> holders;
  };

  /// Takes a segment; `rank` has it.
  [[nodiscard]] std::uint64_t keep(unique_fd file, std::size_t bytes, int rank) {
    entry added;
    added.file = std::move(file);
    added.bytes = bytes;
    added.holders.push_back(rank);
    const std::uint64_t region = next_++;
    regions_.emplace(region, std::move(added));
    return region;
  }

  /// `rank` has it too; nothing where there is no such region (any more).
  [[nodiscard]] const entry* add(std::uint64_t region, int rank) {
    const auto found = regions_.find(region);
    if (found == regions_.end()) return nullptr;
    found->second.holders.push_back(rank);
    return &found->second;
  }

  /// False where `rank` does not have it.
  bool drop(std::uint64_t region, int rank) {
    const auto found = regions_.find(region);
    if (found == regions_.end()) return false;
    std::vector<int>& holders = found->second.holders;
    const auto mine = std::find(holders.begin(), holders.end(), rank);
    if (mine == holders.end()) return false;
    holders.erase(mine);
    if (holders.empty()) regions_.erase(found);
    return true;
  }

  /// `rank` is gone and has nothing any more.
  void forget(int rank) {
    for (auto next = regions_.begin(); next != regions_.end();) {
      std::vector<int>& holders = next->second.holders;
      holders.erase(std::remove(holders.begin(), holders.end(), rank), holders.end());
      next = holders.empty() ? regions_.erase(next) : std::next(next);
    }
  }

  /// The answer to a request of `rank` to keep, attach or drop, and the descriptor that goes with it or -1.
  [[nodiscard]] std::pair<message, int> answer(int rank, received request) {
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

  [[nodiscard]] std::size_t size() const noexcept { return regions_.size(); }

 private:
  std::map<std::uint64_t, entry> regions_;
  std::uint64_t next_ = 1;
};

}  // namespace host
}  // namespace belay::inline BELAY_ABI
