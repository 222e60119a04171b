// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/backend/host/copy/calibration.hpp"

#include <doctest/doctest.h>

#include <chrono>
#include <cstddef>
#include <limits>
#include <vector>

using belay::host::copy_choice;
using belay::host::copy_kind;
using belay::host::copy_times;

namespace {

constexpr std::size_t kib = 1024, mib = 1024 * kib;

// library, rep_movsb, wide, streaming in each class.
copy_times machine_of_performance_md() {
  copy_times out;
  out.us = {{{1, 2, 1.5, 3},
             {4, 6, 3, 9},
             {30, 40, 20, 50},
             {90, 95, 91, 80},
             {130, 140, 135, 110},
             {400, 410, 405, 300},
             {3000, 3100, 3050, 1500}}};
  return out;
}

}  // namespace

TEST_CASE("the fastest kind of the nearest class is chosen") {
  const copy_choice choice(machine_of_performance_md());
  CHECK(choice.of(8) == copy_kind::library);
  CHECK(choice.of(4 * kib) == copy_kind::library);
  CHECK(choice.of(32 * kib) == copy_kind::wide);
  CHECK(choice.of(64 * kib) == copy_kind::wide);
  CHECK(choice.of(256 * kib) == copy_kind::wide);
  CHECK(choice.of(1 * mib) == copy_kind::streaming);
  CHECK(choice.of(1024 * mib) == copy_kind::streaming);
}

TEST_CASE("streaming begins with the class from which on it gains most, and one disturbed timing does not decide") {
  copy_times times = machine_of_performance_md();
  CHECK(copy_choice(times).stream_from_bytes() == 512 * kib);  // in the middle between 256 KiB and 1 MiB
  CHECK(copy_choice(times).streams(512 * kib));
  CHECK(!copy_choice(times).streams(512 * kib - 1));
  times.us[0][3] = 0.5;  // by chance at 4 KiB
  CHECK(copy_choice(times).stream_from_bytes() == 512 * kib);
  times.us[5][3] = 420;  // something else used the memory meanwhile
  CHECK(copy_choice(times).stream_from_bytes() == 512 * kib);
  CHECK(copy_choice(times).of(4 * mib) == copy_kind::streaming);
  times.us[3] = {90, 95, 91, 90};  // a twentieth is no gain
  times.us[4] = {130, 140, 135, 131};
  CHECK(copy_choice(times).stream_from_bytes() == 8 * mib);
  times.us[6][3] = 9000;
  CHECK(copy_choice(times).stream_from_bytes() == std::numeric_limits<std::size_t>::max());
}

TEST_CASE("of copies about as fast the usual one is chosen: the library's, and vectors from some megabytes on") {
  copy_times times;
  for (auto& row : times.us) row = {100, 100, 103, 99};
  const copy_choice even(times);
  CHECK(even.of(256 * kib) == copy_kind::library);
  CHECK(even.of(1 * mib) == copy_kind::library);
  CHECK(even.of(4 * mib) == copy_kind::wide);
  CHECK(even.of(64 * mib) == copy_kind::wide);
  times.us[6] = {100, 130, 130, 130};
  CHECK(copy_choice(times).of(64 * mib) == copy_kind::library);
}

TEST_CASE("classes that were not timed are left to the library") {
  copy_times times = machine_of_performance_md();
  times.us[5] = times.us[6] = {};
  CHECK(copy_choice(times).of(64 * mib) == copy_kind::library);
  CHECK(copy_choice(times).stream_from_bytes() == 512 * kib);
  CHECK(copy_choice(copy_times{}).of(64 * mib) == copy_kind::library);
  CHECK(copy_choice().stream_from_bytes() == std::numeric_limits<std::size_t>::max());
}

TEST_CASE("ranks that merge their times choose alike") {
  copy_times slow = machine_of_performance_md();
  slow.us[0][0] = 10;
  const copy_times merged = copy_times::slowest_of(machine_of_performance_md(), slow);
  CHECK(merged.us[0][0] == 10);
  CHECK(copy_choice(merged).of(4 * kib) == copy_kind::wide);
}

TEST_CASE(
    "timing calls every rank's meeting the same number of times, leaves out what does not fit, and ends in time") {
  std::vector<std::byte> to(300 * kib), from(300 * kib);
  const auto meetings = [&] {
    int count = 0;
    const copy_times times =
        belay::host::time_copies(std::span(to), std::span(from), std::chrono::microseconds(0), [&] { ++count; });
    for (std::size_t i = 0; i < copy_times::sizes.size(); ++i) {
      for (const double us : times.us[i]) CHECK((us > 0) == (copy_times::sizes[i] <= to.size()));
    }
    return count;
  };
  CHECK(meetings() == meetings());
  const copy_times large = belay::host::time_copies(
      std::span(to), std::span(from), std::chrono::microseconds(0), [] {}, 256 * kib);
  for (std::size_t i = 0; i < copy_times::sizes.size(); ++i) CHECK((large.us[i][0] > 0) == (i == 2));
  CHECK(to == from);  // what was timed were copies
}
