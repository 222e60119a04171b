// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A file is what its memory was when the write began, whatever an update does to it meanwhile.
#include <doctest/doctest.h>

#include <atomic>
#include <cstddef>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "unit/train/support/checkpoint.hpp"

using namespace checkpoint_bench;

namespace {

constexpr std::size_t chunk = belay::checkpoint_chunk;

// Writes wait until the gate is open.
struct gated_files : belay::posix_files {
  static inline std::atomic<bool> open_now = false;

  [[nodiscard]] static ssize_t write_at(int fd, const void* from, std::size_t bytes, off_t offset) {
    while (!open_now.load()) std::this_thread::yield();
    return posix_files::write_at(fd, from, bytes, offset);
  }
};

struct bench {
  directory dir;
  std::vector<std::byte> ring;
  std::vector<std::byte> large = std::vector<std::byte>(4 * chunk + 77), small = std::vector<std::byte>(300);
  std::vector<std::byte> header = std::vector<std::byte>(50, std::byte{'h'});
  std::string expected;
  belay::checkpoint_writer<gated_files> writer;

  explicit bench(std::size_t ring_chunks) : ring((ring_chunks + 1) * chunk), writer(ring) {
    std::uint32_t state = 5;
    for (auto* each : {&large, &small})
      for (std::byte& one : *each) one = static_cast<std::byte>((state = state * 1664525U + 1013904223U) >> 24U);
    for (const auto* each : {&header, &small, &large, &small})
      expected.append(reinterpret_cast<const char*>(each->data()), each->size());
    gated_files::open_now = false;
    belay::file_to_write file{dir / "step/file", {header, small, large, small}, expected.size(), {}};
    writer.start({std::move(file)}, dir / "step", belay::where::current());
  }
  // The next step.
  void update() {
    for (auto* each : {&large, &small}) std::memset(each->data(), 0, each->size());
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
  for (const std::size_t ring_chunks : {1U, 3U, 9U}) {
    CAPTURE(ring_chunks);
    bench with(ring_chunks);
    std::thread update([&] {
      with.writer.before_update();
      with.update();
    });
    // At least this much is copied before the first write is over; the last chunk has 727 bytes.
    while (with.writer.costs().copied_bytes < (ring_chunks > 4 ? 4 : ring_chunks) * chunk - chunk + 700)
      std::this_thread::yield();
    gated_files::open_now = true;
    update.join();
    CHECK(with.written() == with.expected);
    with.expect_checksums();
  }
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
  bench with(3);
  with.update();
  gated_files::open_now = true;
  CHECK(with.written() != with.expected);
}

TEST_CASE("a writer that is given up ends after the chunk that it is at") {
  {
    bench with(3);
    gated_files::open_now = true;
  }
  CHECK(true);
}
