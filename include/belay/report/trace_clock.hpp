// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A rank's clock beside that of rank 0. Ranks of one machine have one clock. Between machines a time is asked for and
// comes back, several times: of the shortest of these round trips the middle is when rank 0 has read its clock, to
// within half of it (D. L. Mills, RFC 5905, section 8). That is done at the start and at the end, and what is between
// is interpolated, because clocks of two machines drift apart.
//
//   belay::rank_clock clock(control);         // before the first traced step, on all ranks
//   clock.read_again(control);                // after the last
//   const std::int64_t begun = clock.of_rank_0(span.begin);
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "belay/core/bounds.hpp"
#include "belay/core/config.hpp"
#include "belay/core/hash.hpp"
#include "belay/core/policies.hpp"
#include "belay/core/unique_fd.hpp"

namespace belay::inline BELAY_ABI {

/// At `at` of its own clock a rank is so many nanoseconds behind rank 0, to within `uncertainty`.
struct clock_reading {
  std::int64_t at = 0;           // of the rank's own clock
  std::int64_t behind = 0;       // what is to be added for rank 0's
  std::int64_t uncertainty = 0;  // half of a round trip
};

/// The time of rank 0's clock when a rank's own is `own`, from a reading before and one after.
[[nodiscard]] inline std::int64_t between(const clock_reading& before, const clock_reading& after,
                                          std::int64_t own) noexcept {
  if (after.at <= before.at) return own + before.behind;
  const double along =
      std::clamp(static_cast<double>(own - before.at) / static_cast<double>(after.at - before.at), 0.0, 1.0);
  return own + before.behind + static_cast<std::int64_t>(along * static_cast<double>(after.behind - before.behind));
}

/// Equal for processes that read one monotonic clock: of one boot, and one namespace of times.
[[nodiscard]] inline std::uint64_t this_machine() {
  fnv1a out;
  char text[256];
  const unique_fd boot(::open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC));
  const ssize_t read = boot ? ::read(boot.get(), text, sizeof text) : 0;
  if (read > 0) out.add_text({text, static_cast<std::size_t>(read)});
  const ssize_t linked = ::readlink("/proc/self/ns/time", text, sizeof text);
  if (linked > 0) out.add_text({text, static_cast<std::size_t>(linked)});
  return out.value();
}

/// A rank's clock, read beside that of rank 0 at the start and at the end.
template <clock_policy Clock = monotonic_clock>
class rank_clock {
 public:
  static constexpr int round_trips = 16;  // of a reading

  /// Collective over `control`. Ranks with the `machine` of rank 0 have its clock.
  template <class Group>
  explicit rank_clock(const Group& control, std::uint64_t machine = this_machine(), Clock clock = {})
      : clock_(clock), machines_(static_cast<std::size_t>(control.size())) {
    control.all_gather(std::span<const std::uint64_t>(&machine, 1), std::span<std::uint64_t>(machines_));
    start_ = end_ = read(control);
  }
  /// The end of what is asked for. Collective; allocates nothing.
  template <class Group>
  void read_again(const Group& control) {
    end_ = read(control);
  }

  /// A time of the rank's own clock as rank 0 has it.
  [[nodiscard]] std::int64_t of_rank_0(std::int64_t own) const noexcept { return between(start_, end_, own); }
  /// Whether all ranks read the clock of rank 0.
  [[nodiscard]] bool shared() const noexcept {
    return std::all_of(machines_.begin(), machines_.end(), [this](std::uint64_t each) { return each == machines_[0]; });
  }
  /// Nanoseconds; 0 where it is rank 0's own clock.
  [[nodiscard]] std::int64_t uncertainty() const noexcept { return greater_of(start_.uncertainty, end_.uncertainty); }

 private:
  [[nodiscard]] bool elsewhere(std::size_t rank) const noexcept { return machines_[rank] != machines_[0]; }

  template <class Group>
  [[nodiscard]] clock_reading read(const Group& control) {
    const auto own = static_cast<std::size_t>(control.rank());
    clock_reading best;
    if (own == 0) {
      for (std::size_t rank = 1; rank < machines_.size(); ++rank)
        if (elsewhere(rank)) answer(control, static_cast<int>(rank));
    } else if (elsewhere(own)) {
      for (int trip = 0; trip < round_trips; ++trip) {
        std::int64_t there = 0;
        const std::int64_t sent = clock_.now();
        control.send(0, std::span<const std::int64_t>(&sent, 1));
        control.receive(0, std::span<std::int64_t>(&there, 1));
        const std::int64_t back = clock_.now();
        const std::int64_t half = (back - sent) / 2;
        if (trip == 0 || half < best.uncertainty) best = {sent + half, there - (sent + half), half};
      }
    }
    return best;
  }
  template <class Group>
  void answer(const Group& control, int rank) {
    for (int trip = 0; trip < round_trips; ++trip) {
      std::int64_t asked = 0;
      control.receive(rank, std::span<std::int64_t>(&asked, 1));
      const std::int64_t now = clock_.now();
      control.send(rank, std::span<const std::int64_t>(&now, 1));
    }
  }

  [[no_unique_address]] Clock clock_;
  std::vector<std::uint64_t> machines_;  // by rank
  clock_reading start_, end_;
};

}  // namespace belay::inline BELAY_ABI
