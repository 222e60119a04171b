// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A file is what its memory was when the write began, whatever an update does to it meanwhile.
#include <doctest/doctest.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "unit/device/support/tier_file.hpp"
#include "unit/train/support/checkpoint.hpp"

using namespace checkpoint_bench;

namespace {

constexpr std::size_t chunk = belay::checkpoint_chunk;

// Writes wait until the gate is open.
struct gated_files : belay::posix_files {
  static inline std::atomic<bool> open_now = false;
  static inline std::atomic<int> arrived = 0;

  [[nodiscard]] static ssize_t write_at(int fd, const void* from, std::size_t bytes, off_t offset) {
    ++arrived;
    while (!open_now.load()) std::this_thread::yield();
    return posix_files::write_at(fd, from, bytes, offset);
  }
};

// Where the large segment is.
enum class segment_place { memory, file };

struct bench {
  directory dir;
  tier_files::folder scratch;
  std::vector<std::byte> ring, staging;
  belay::tier_file<tier_files::by_thread::calls> tier{scratch.path, 9 * chunk, 4, belay::file_access::thread};
  std::vector<std::byte> large = std::vector<std::byte>(8 * chunk + 77), small = std::vector<std::byte>(300);
  std::vector<std::byte> header = std::vector<std::byte>(50, std::byte{'h'});
  std::string expected;
  belay::checkpoint_writer<gated_files> writer;

  explicit bench(std::size_t ring_chunks, segment_place its = segment_place::memory)
      : ring(belay::checkpoint_writer<gated_files>::memory_bytes(ring_chunks * chunk)),
        staging(belay::checkpoint_writer<gated_files>::staging_bytes),
        writer(ring, staging) {
    std::uint32_t state = 5;
    for (auto* each : {&large, &small})
      for (std::byte& one : *each) one = static_cast<std::byte>((state = state * 1664525U + 1013904223U) >> 24U);
    for (const auto* each : {&header, &small, &large, &small})
      expected.append(reinterpret_cast<const char*>(each->data()), each->size());
    gated_files::open_now = false;
    belay::file_to_write file{dir / "step/file", {}, expected.size(), {}};
    for (const auto* each : {&header, &small, &large, &small}) file.segments.emplace_back(std::span(*each));
    if (its == segment_place::file) {
      // At no multiple of anything, the last part by itself.
      constexpr std::size_t first = 1001, rest = 700'001;
      const tier_files::blocks all(tier.size_bytes());
      std::memcpy(all.all().data() + first, large.data(), large.size());
      tier_files::write(tier, 0, all);
      const std::size_t joined = large.size() - rest;
      file.segments[2] = {tier.reference(), first, joined};
      file.segments.insert(file.segments.begin() + 3, {tier.reference(), first + joined, rest});
    }
    writer.start({std::move(file)}, dir / "step", belay::where::current());
  }
  // The next step.
  void update() {
    for (auto* each : {&large, &small}) std::memset(each->data(), 0, each->size());
    const tier_files::blocks zeros(tier.size_bytes());
    std::memset(zeros.all().data(), 0, zeros.all().size());
    tier_files::write(tier, 0, zeros);
  }
  [[nodiscard]] std::string written() {
    writer.wait_done();
    REQUIRE(!writer.problem());
    return text_of(dir / "step/file");
  }
  void expect_checksums() {
    for (std::size_t i = 0; i < writer.files()[0].checksums.size(); ++i) {
      const std::string part = expected.substr(i * chunk, chunk);
      CHECK(writer.files()[0].checksums[i] == belay::crc32c_of(std::as_bytes(std::span<const char>(part))));
    }
  }
};

}  // namespace

TEST_CASE("what the ring takes is copied, and an update waits for the rest") {
  for (const auto& [ring_chunks, its] :
       std::initializer_list<std::pair<std::size_t, segment_place>>{{1, segment_place::memory},
                                                                    {3, segment_place::memory},
                                                                    {9, segment_place::memory},
                                                                    {1, segment_place::file},
                                                                    {9, segment_place::file}}) {
    CAPTURE(ring_chunks);
    CAPTURE(static_cast<int>(its));
    bench with(ring_chunks, its);
    std::thread update([&] {
      with.writer.before_update();
      with.update();
    });
    // At least this much is copied before the first write is over: four chunks wait at the gate, the last has 727
    // bytes.
    while (with.writer.costs().copied_bytes < (ring_chunks > 4 ? 4 : ring_chunks) * chunk - chunk + 700)
      std::this_thread::yield();
    gated_files::open_now = true;
    update.join();
    CHECK(with.written() == with.expected);
    with.expect_checksums();
  }
}

TEST_CASE("where an update cannot copy from a tier's file the write ends with the reason, and the update goes on") {
  const tier_files::calm before;
  tier_files::now.alignment = std::optional<std::size_t>(4096);
  gated_files::arrived = 0;
  bench with(9, segment_place::file);
  while (gated_files::arrived < 4) std::this_thread::yield();  // with the first four chunks
  tier_files::now.result = -EIO;
  tier_files::now.bad_offset = 5 * chunk;
  const std::size_t reads = tier_files::now.at_gate;
  std::thread update([&] { with.writer.before_update(); });
  while (tier_files::now.at_gate < reads + 3)
    std::this_thread::yield();  // the second chunk's, of which the last is bad
  gated_files::open_now = true;
  update.join();
  with.writer.wait_done();
  tier_files::now.bad_offset = -1;
  REQUIRE(with.writer.problem());
  CHECK(with.writer.problem()->path() == with.scratch.path);
  CHECK(with.writer.problem()->offset() == 5 * chunk);
}

TEST_CASE("without a ring an update waits for all of it") {
  bench with(0);
  std::thread update([&] {
    with.writer.before_update();
    with.update();
  });
  gated_files::open_now = true;
  update.join();
  CHECK(with.written() == with.expected);
  CHECK(with.writer.costs().copied_bytes == 0);
  CHECK(with.writer.costs().written_bytes == with.expected.size());
}

TEST_CASE("the wrong policy, an update that does not ask, is seen") {
  for (const segment_place its : {segment_place::memory, segment_place::file}) {
    bench with(3, its);
    with.update();
    gated_files::open_now = true;
    CHECK(with.written() != with.expected);
  }
}

TEST_CASE("a writer that is given up ends after the chunk that it is at") {
  {
    bench with(3);
    gated_files::open_now = true;
  }
  CHECK(true);
}
