// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/backend/host/copy/calibration.hpp"

#include <doctest/doctest.h>

#include <chrono>
#include <cstddef>
#include <limits>
#include <vector>

#include "belay/backend/host/processes.hpp"
#include "belay/backend/host/world.hpp"

using belay::memory_access;
using belay::host::copy_table;
using belay::host::copy_times;

namespace {

constexpr std::size_t kib = 1024, mib = 1024 * kib;

// libc, rep_movsb, temporal, non_temporal in each class.
copy_times some_machine() {
  copy_times out;
  out.us = {
      {{1, 2, 1.5, 3}, {4, 6, 3, 9}, {30, 40, 20, 50}, {90, 95, 91, 80}, {130, 140, 135, 110}, {400, 410, 405, 300}}};
  return out;
}

}  // namespace

TEST_CASE("the fastest access of the nearest class is chosen") {
  const copy_table table(some_machine());
  CHECK(table.calibrated(8) == memory_access::libc);
  CHECK(table.calibrated(4 * kib) == memory_access::libc);
  CHECK(table.calibrated(32 * kib) == memory_access::temporal);
  CHECK(table.calibrated(64 * kib) == memory_access::temporal);
  CHECK(table.access_of(256 * kib) == memory_access::temporal);
  CHECK(table.access_of(1 * mib) == memory_access::non_temporal);
  CHECK(table.access_of(1024 * mib) == memory_access::non_temporal);
}

TEST_CASE("non-temporal stores begin with the class from which on they gain most; one disturbed time does not decide") {
  copy_times times = some_machine();
  CHECK(copy_table(times).non_temporal_from_bytes() == 512 * kib);  // in the middle between 256 KiB and 1 MiB
  CHECK(copy_table(times).non_temporal(512 * kib));
  CHECK(!copy_table(times).non_temporal(512 * kib - 1));
  times.us[0][3] = 0.5;  // by chance at 4 KiB
  CHECK(copy_table(times).non_temporal_from_bytes() == 512 * kib);
  times.us[4][3] = 130;  // something else used the memory meanwhile
  CHECK(copy_table(times).non_temporal_from_bytes() == 512 * kib);
  times.us[3] = {90, 95, 91, 90};  // a twentieth is no gain
  times.us[4] = {130, 140, 135, 131};
  CHECK(copy_table(times).non_temporal_from_bytes() > 2 * mib);
  times.us[5][3] = 9000;
  CHECK(copy_table(times).non_temporal_from_bytes() == std::numeric_limits<std::size_t>::max());
}

TEST_CASE("of copies about as fast the default is chosen: libc's, and vectors from some megabytes on") {
  copy_times times;
  for (auto& row : times.us) row = {100, 100, 103, 99};
  const copy_table even(times);
  CHECK(even.access_of(256 * kib) == memory_access::libc);
  CHECK(even.access_of(1 * mib) == memory_access::libc);
  CHECK(even.access_of(4 * mib) == memory_access::temporal);
  times.us[5] = {100, 130, 130, 130};
  CHECK(copy_table(times).access_of(4 * mib) == memory_access::libc);
}

TEST_CASE("classes that were not timed are libc's") {
  copy_times times = some_machine();
  times.us[5] = {};
  CHECK(copy_table(times).access_of(4 * mib) == memory_access::libc);
  CHECK(copy_table(times).non_temporal_from_bytes() == 512 * kib);
  CHECK(copy_table(copy_times{}).access_of(4 * mib) == memory_access::libc);
  CHECK(copy_table().non_temporal_from_bytes() == std::numeric_limits<std::size_t>::max());
}

TEST_CASE("what no cache holds bypasses the caches, whatever was timed below") {
  CHECK(copy_table().access_of(8 * mib) == memory_access::non_temporal);
  CHECK(copy_table().non_temporal(8 * mib));
  CHECK(!copy_table().non_temporal(8 * mib - 1));
}

TEST_CASE("all classes that fit are timed, and what was timed were copies") {
  std::vector<std::byte> to(300 * kib), from(300 * kib);
  const copy_times times = belay::host::time_copies(std::span(to), std::span(from), std::chrono::microseconds(0));
  for (std::size_t i = 0; i < copy_times::sizes.size(); ++i) {
    for (const double us : times.us[i]) CHECK((us > 0) == (copy_times::sizes[i] <= to.size()));
  }
  CHECK(to == from);
}

namespace {

// What a rank finds of the table before its first operation: the access of each class.
struct seen_table {
  int accesses[copy_times::sizes.size()] = {};

  [[nodiscard]] bool operator==(const seen_table&) const = default;
};

seen_table table_of(const belay::host::world_status& status) {
  seen_table out;
  for (std::size_t i = 0; i < copy_times::sizes.size(); ++i) {
    out.accesses[i] = static_cast<int>(status.copies().calibrated(copy_times::sizes[i]));
  }
  return out;
}

seen_table all_of(memory_access how) {
  seen_table out;
  for (int& each : out.accesses) each = static_cast<int>(how);
  return out;
}

}  // namespace

TEST_CASE("the calibration is published before any rank's body, the same for all ranks; an option skips it") {
  using belay::host::calibration;
  const auto body = [](belay::host::rank& rank) { return table_of(*rank.state()); };
  for (const calibration when : {calibration::measure, calibration::skip}) {
    belay::host::world_options options;
    options.calibration = when;
    std::vector<std::vector<seen_table>> worlds{belay::host::world(3, options).run(body),
                                                belay::host::processes(3, options).run(body)};
    for (const auto& seen : worlds) {
      for (const seen_table& each : seen) CHECK(each == seen.front());
      if (when == calibration::skip) CHECK(seen.front() == all_of(memory_access::libc));
    }
    // A process measures once: its thread ranks and its children have one table.
    CHECK(worlds[0] == worlds[1]);
  }
}
