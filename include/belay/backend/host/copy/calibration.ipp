// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The calibration of copies: its clockwork, and how a table follows from times.
#pragma once

#include <algorithm>
#include <cmath>
#include <iterator>
#include <memory>
#include <new>

#include "belay/backend/host/copy/calibration.hpp"
#include "belay/core/bounds.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

BELAY_DECL copy_table::copy_table(const copy_times& times) noexcept : copy_table() {
  constexpr std::size_t least_default_non_temporal = std::size_t{3} << 19, least_default_vectors = std::size_t{4} << 20;
  constexpr double margin = 0.9;
  const auto us = [&](std::size_t i, memory_access how) {
    const auto* const found = std::find(std::begin(copy_accesses), std::end(copy_accesses), how);
    return times.us[i][static_cast<std::size_t>(found - std::begin(copy_accesses))];
  };
  double gained = 0, most_gained = 0;
  for (std::size_t i = accesses_.size(); i-- > 0;) {
    if (us(i, memory_access::libc) == 0) continue;
    gained += std::log(0.95 * us(i, memory_access::temporal) / us(i, memory_access::non_temporal));
    if (gained <= most_gained) continue;
    most_gained = gained;
    non_temporal_from_ = least_of_class(i);
  }
  for (std::size_t i = 0; i < accesses_.size(); ++i) {
    const auto& row = times.us[i];
    if (us(i, memory_access::libc) == 0) continue;
    const std::size_t bytes = copy_times::sizes[i];
    if (bytes >= least_default_non_temporal && bytes >= non_temporal_from_) {
      accesses_[i] = memory_access::non_temporal;
    } else if (bytes >= least_default_vectors) {
      accesses_[i] = memory_access::temporal;
    }
    const auto least = std::min_element(row.begin(), row.end());
    if (*least < margin * us(i, accesses_[i])) accesses_[i] = copy_accesses[least - row.begin()];
  }
}

BELAY_DECL copy_times time_copies(std::span<std::byte> to, std::span<std::byte> from,
                                  std::chrono::microseconds budget) {
  using clock = std::chrono::steady_clock;
  const clock::time_point start = clock::now();
  copy_times out;
  for (std::size_t i = 0; i < copy_times::sizes.size(); ++i) {
    const std::size_t bytes = copy_times::sizes[i];
    if (bytes > lesser_of(to.size(), from.size()) || (budget.count() > 0 && clock::now() - start > budget)) break;
    // The smaller the more often: a tick of the clock is not much shorter than a small copy.
    const int rounds = bytes > (std::size_t{1} << 20) ? 2 : bytes > (std::size_t{32} << 10) ? 4 : 9;
    const std::size_t places = lesser_of(to.size(), from.size()) / bytes;
    for (int round = 0; round < rounds; ++round) {
      // Somewhere else each time: which lines of a cache the pages share is chance.
      const std::size_t place = static_cast<std::size_t>(round) % places * bytes;
      std::byte* const target = to.data() + place;
      std::byte* const source = from.data() + place;
      for (std::size_t k = 0; k < std::size(copy_accesses); ++k) {
        copy_bytes(target, source, bytes, copy_accesses[k]);  // leaves the target where this access leaves it
        // Fresh bytes, and never zeros: stores of zeros are faster than those of anything else.
        for (std::size_t line = 0; line < bytes; line += 64) source[line] = static_cast<std::byte>(line / 64 % 255 + 1);
        const clock::time_point before = clock::now();
        copy_bytes(target, source, bytes, copy_accesses[k]);
        const double us = std::chrono::duration<double, std::micro>(clock::now() - before).count();
        double& best = out.us[i][k];
        best = round == 0 ? us : lesser_of(best, us);
      }
    }
  }
  return out;
}

BELAY_DECL copy_table calibrate_copies() {
  constexpr std::size_t largest = copy_times::sizes.back();
  const std::unique_ptr<std::byte[]> memory(new (std::nothrow) std::byte[2 * largest]);
  if (memory == nullptr) return {};
  std::fill(memory.get(), memory.get() + 2 * largest, std::byte{1});
  return copy_table(
      time_copies({memory.get(), largest}, {memory.get() + largest, largest}, std::chrono::milliseconds(40)));
}

}  // namespace host
}  // namespace belay::inline BELAY_ABI
