// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The lasting leases of a run, looked up by row, by purpose and by address.
#pragma once

#include <functional>

#include "belay/train/run_memory.hpp"

namespace belay::inline BELAY_ABI {

BELAY_DECL void lasting_leases::add(plan_item item, std::span<std::byte> memory) {
  if (!memory.empty()) leases_.push_back({memory, rows_.items().size()});
  rows_.add(std::move(item));
  vacated_.push_back(0);
}

BELAY_DECL const rank_shards* lasting_leases::shards_of(std::size_t item) const noexcept {
  const rank_shards* out = nullptr;
  for (const rank_shards& each : shards_)
    if (each.item == item) out = &each;
  return out;
}

BELAY_DECL std::vector<lasting_lease> lasting_leases::of(tier where_it_is, std::string_view purpose) const {
  std::vector<lasting_lease> out;
  for (const lasting_lease& each : leases_)
    if (const plan_item& item = rows_.items()[each.item];
        item.where_it_is == where_it_is && item.purpose == purpose && !each.memory.empty())
      out.push_back(each);
  return out;
}

BELAY_DECL std::size_t lasting_leases::live_bytes(std::size_t row) const noexcept {
  return rows_.items()[row].bytes - vacated_[row];
}

BELAY_DECL std::size_t& lasting_leases::row_of(const std::span<std::byte> part) noexcept {
  for (const lasting_lease& each : leases_)
    if (!std::less<>()(part.data(), each.memory.data()) &&
        std::less<>()(part.data(), each.memory.data() + each.memory.size()))
      return vacated_[each.item];
  return elsewhere_;
}

}  // namespace belay::inline BELAY_ABI
