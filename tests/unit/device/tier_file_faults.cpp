// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What goes wrong with a tier's file, over both ways of transferring.
#include <doctest/doctest.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <utility>

#include "belay/device/copy_stream.hpp"
#include "belay/device/host_stream.hpp"
#include "belay/device/streamed_file.hpp"
#include "belay/device/tier_file.hpp"
#include "support/tier_file.hpp"

using namespace tier_files;
using belay::tier_file;
using belay::tier_file_error;
using belay::tier_file_fault;
using belay::tier_file_operation;

namespace {

// The error that `work` ends with; none is a failure of the test.
template <class Work>
tier_file_error::details error_of(const Work& work) {
  try {
    work();
  } catch (const tier_file_error& problem) {
    CHECK(problem.offset() == problem.about().offset + problem.about().done);
    return problem.about();
  }
  FAIL("no error");
  return {};
}

}  // namespace

TEST_CASE_TEMPLATE("short and interrupted calls are continued", Way, by_thread, by_kernel_ring, by_backward_ring) {
  const calm before;
  if (!exists<Way>()) return;
  for (const auto& [alignment, most] : {std::pair<std::size_t, std::size_t>{4096, 4096}, {0, 1000}, {0, 8191}}) {
    now.alignment = alignment;
    tier_file<typename Way::calls> file("/tmp", 8 * 4096, 2, Way::access);
    if (alignment == 0) CHECK(!file.access().direct);
    now.most_bytes = most;
    now.interruptions = 3;
    const blocks from(7 * 4096, 3), to(7 * 4096);
    write(file, 4096, from);
    now.interruptions = 3;
    read_blocks(file, 4096, to);
    CHECK(from == to);
    CHECK(now.interruptions == 0);
  }
}

TEST_CASE_TEMPLATE("an error comes out of its own transfer, and others are whole", Way, by_thread, by_kernel_ring,
                   by_backward_ring) {
  const calm before;
  if (!exists<Way>()) return;
  now.alignment = std::size_t{4096};
  tier_file<typename Way::calls> file("/tmp", 12 * 4096, 3, Way::access);
  const std::array<blocks, 3> from{blocks(4 * 4096, 1), blocks(4 * 4096, 2), blocks(4 * 4096, 3)};
  for (const auto& [code, fault] : {std::pair{EIO, tier_file_fault::device},
                                    {ENOSPC, tier_file_fault::full},
                                    {EDQUOT, tier_file_fault::full},
                                    {EROFS, tier_file_fault::system}}) {
    for (const bool writes : {true, false}) {
      const std::array<blocks, 3> to{blocks(4 * 4096), blocks(4 * 4096), blocks(4 * 4096)};
      now.most_bytes = 4096;
      now.bad_offset = 7 * 4096;
      now.result = -code;
      std::array<belay::file_transfer, 3> transfers;
      for (std::size_t i = 0; i < 3; ++i)
        transfers[i] =
            writes ? file.start_write(i * 4 * 4096, from[i].all()) : file.start_read(i * 4 * 4096, to[i].all());
      transfers[2].wait();
      belay::file_transfer moved = std::move(transfers[1]);
      transfers[1].wait();  // it owns nothing any more
      for (int twice = 0; twice < 2; ++twice) {
        const tier_file_error::details error = error_of([&] { moved.wait(); });
        CHECK(error.operation == (writes ? tier_file_operation::write : tier_file_operation::read));
        CHECK(error.fault == fault);
        CHECK(error.code == code);
        CHECK(error.offset == 4 * 4096);
        CHECK(error.bytes == 4 * 4096);
        CHECK(error.done == 3 * 4096);
      }
      transfers[0].wait();
      now.bad_offset = -1;
      if (writes) write(file, std::size_t{4} * 4096, from[1]);  // the file is as good as before
      for (std::size_t i = 0; i < 3; ++i) {
        read_blocks(file, i * 4 * 4096, to[i]);
        CHECK(to[i] == from[i]);
      }
    }
  }
}

TEST_CASE("an error says file, operation, bytes and byte in one line") {
  const calm before;
  tier_file<by_thread::calls> file("/tmp", 8 * 4096, 1, belay::file_access::thread);
  const blocks memory(4 * 4096, 1);
  now.most_bytes = 4096;
  now.bad_offset = 3 * 4096;
  now.result = -EIO;
  CHECK_THROWS_WITH_AS(file.start_write(4096, memory.all()).wait(),
                       doctest::Contains("/tmp: tier file: cannot write 16384 bytes from byte 4096 on, 8192 are done: "
                                         "Input/output error (byte 12288)"),
                       belay::file_error);
}

TEST_CASE_TEMPLATE("a file that was truncated underneath is named, wherever it ends", Way, by_thread, by_kernel_ring,
                   by_backward_ring) {
  const calm before;
  if (!exists<Way>()) return;
  for (const char* directory : {"/tmp", "/dev/shm"}) {
    tier_file<typename Way::calls> file(directory, 8 * 4096, 2, Way::access);
    const blocks memory(4 * 4096, 1);
    for (const auto& [length, done] : {std::pair<off_t, std::size_t>{7 * 4096, 3 * 4096},
                                       {6 * 4096 + 100, 2 * 4096 + 100},
                                       {4 * 4096, 0},
                                       {100, 0}}) {
      REQUIRE(::ftruncate(now.descriptor, length) == 0);
      const tier_file_error::details error = error_of([&] { read_blocks(file, std::size_t{4} * 4096, memory); });
      CHECK(error.fault == tier_file_fault::truncated);
      CHECK(error.done == done);
      CHECK(error.code == 0);
    }
  }
}

TEST_CASE_TEMPLATE("a call that never takes a block ends", Way, by_thread, by_kernel_ring, by_backward_ring) {
  const calm before;
  if (!exists<Way>()) return;
  for (const std::int64_t taken : {0, 100}) {
    now.alignment = std::size_t{4096};
    tier_file<typename Way::calls> file("/tmp", 8 * 4096, 2, Way::access);
    if (!file.access().direct && taken != 0) continue;
    const blocks memory(4 * 4096, 1);
    now.bad_offset = 0;
    now.result = taken;
    const tier_file_error::details error = error_of([&] { write(file, 0, memory); });
    CHECK(error.fault == tier_file_fault::stalled);
    CHECK(error.done == static_cast<std::size_t>(taken));
    now.bad_offset = -1;
  }
}

TEST_CASE_TEMPLATE("a ring that takes no call fails this transfer alone", Way, by_kernel_ring, by_backward_ring) {
  const calm before;
  if (!exists<Way>()) return;
  tier_file<typename Way::calls> file("/tmp", 4 * 4096, 1, Way::access);
  const blocks memory(4 * 4096, 1);
  now.submit = ENOMEM;
  CHECK(error_of([&] { write(file, 0, memory); }).code == ENOMEM);
  CHECK(error_of([&] { write(file, 0, memory); }).done == 0);
  now.submit = 0;
  write(file, 0, memory);
}

TEST_CASE_TEMPLATE("a dropped transfer has ended, and its error with it", Way, by_thread, by_kernel_ring,
                   by_backward_ring) {
  const calm before;
  if (!exists<Way>()) return;
  tier_file<typename Way::calls> file("/tmp", 8 * 4096, 2, Way::access);
  now.bad_offset = 4096;
  now.result = -EIO;
  const blocks from(4096, 4), to(4096);
  write(file, 0, from);
  {
    const blocks gone(4096, 1);
    const belay::file_transfer failed = file.start_write(4096, gone.all());
  }
  belay::file_transfer failed = file.start_read(4096, to.all());
  failed = file.start_read(0, to.all());
  failed.wait();
  CHECK(to == from);
}

TEST_CASE("without O_TMPFILE a named file is unlinked at once") {
  const calm before;
  const folder where;
  for (const int code : {EOPNOTSUPP, EISDIR, EINVAL}) {
    now.open_unnamed = code;
    tier_file<by_thread::calls> file(where.path, 2 * 4096, 1);
    CHECK(where.empty());
    const blocks from(2 * 4096, 2), to(2 * 4096);
    write(file, 0, from);
    read_blocks(file, 0, to);
    CHECK(from == to);
  }
  // Left by a killed process of the same number.
  std::ofstream(where.path + "/.belay-tier-" + std::to_string(::getpid()) + "-0") << "not ours";
  {
    const tier_file<by_thread::calls> file(where.path, 4096, 1);
    CHECK(std::filesystem::file_size(where.path + "/.belay-tier-" + std::to_string(::getpid()) + "-0") == 8);
  }
  now.unlink = EPERM;
  CHECK_THROWS_WITH_AS(tier_file<by_thread::calls>(where.path, 4096, 1),
                       doctest::Contains(("cannot open: Operation not permitted (its name " + where.path).c_str()),
                       tier_file_error);
  now.open_new = EROFS;
  CHECK(error_of([&] { tier_file<by_thread::calls>(where.path, 4096, 1); }).code == EROFS);
}

TEST_CASE("what a directory refuses is named when the file is made") {
  const calm before;
  const folder where;
  using file = tier_file<by_thread::calls>;
  now.interrupted_opens = 2;
  CHECK(file(where.path, 4096, 1).size_bytes() == 4096);

  CHECK_THROWS_WITH_AS(
      file(where.path + "/none", 4096, 1),
      doctest::Contains(
          ("tier file: cannot open: No such file or directory (there is no folder " + where.path + "/none)").c_str()),
      tier_file_error);
  std::ofstream(where.path + "/file") << "x";
  CHECK_THROWS_WITH_AS(file(where.path + "/file", 4096, 1), doctest::Contains("/file is no folder)"), tier_file_error);
  CHECK_THROWS_WITH_AS(
      static_cast<void>(belay::medium_of(where.path + "/none")),
      doctest::Contains(
          "/none): no file can be made in this folder; take one of a disk in which this user may make files"),
      tier_file_error);
  CHECK_THROWS_WITH_AS(file("/proc", 4096, 1), doctest::Contains("/proc: tier file: cannot open: "), tier_file_error);
  CHECK_THROWS_WITH_AS(file("/proc", 4096, 1), doctest::Contains(": no file can be made in this folder; take one of"),
                       tier_file_error);
  now.open_unnamed = EMFILE;
  CHECK_THROWS_WITH_AS(file(where.path, 4096, 1), doctest::Contains("RLIMIT_NOFILE"), tier_file_error);
  CHECK(error_of([&] { file(where.path, 4096, 1); }).free == std::nullopt);
  now.open_unnamed = 0;

  for (const int code : {ENOSPC, EDQUOT, EFBIG}) {
    now.allocate = code;
    const tier_file_error::details error = error_of([&] { file(where.path, 3 * 4096, 1); });
    CHECK(error.operation == tier_file_operation::allocate);
    CHECK((error.fault == tier_file_fault::full) == (code != EFBIG));
    CHECK(error.bytes == 3 * 4096);
  }
  CHECK_THROWS_WITH_AS(file(where.path, 3 * 4096, 1), doctest::Contains("cannot allocate 12288 bytes: "),
                       tier_file_error);
  CHECK_THROWS_WITH_AS(file(where.path, 3 * 4096, 1), doctest::Contains("; raise the limit on files (ulimit -f)"),
                       tier_file_error);
}

TEST_CASE("more than a directory has room for is refused by the system") {
  const calm before;
  const std::size_t more = (std::filesystem::space("/dev/shm").capacity / 4096 + 1) * 4096;
  const tier_file_error::details error =
      error_of([&] { tier_file<by_thread::calls>("/dev/shm", more, 1, belay::file_access::thread); });
  CHECK(error.fault == tier_file_fault::full);
  CHECK(error.code == ENOSPC);
  CHECK(error.bytes == more);
  REQUIRE(error.free);
  CHECK(*error.free < more);
  CHECK_THROWS_WITH_AS(tier_file<by_thread::calls>("/dev/shm", more, 1),
                       doctest::Contains("bytes are free; take a folder of a disk with more room, or offload less"),
                       tier_file_error);
}

TEST_CASE("the alignment is what the file system tells, or a page; without O_DIRECT the file is buffered") {
  const calm before;
  using file = tier_file<by_thread::calls>;
  now.alignment = std::size_t{1024};
  CHECK(file("/tmp", 1024, 1).alignment() == 1024);
  now.alignment = std::optional<std::size_t>{};
  CHECK(file("/tmp", 4096, 1).alignment() == 4096);
  now.alignment = std::size_t{0};
  CHECK(!file("/tmp", 4096, 1).access().direct);
  CHECK(file("/tmp", 4096, 1).access().why_buffered == "the file system has no O_DIRECT for this file");
  CHECK(file("/tmp", 4096, 1).alignment() == 4096);
  now.alignment = std::optional<std::size_t>{};
  now.make_direct = EINVAL;
  CHECK(!file("/tmp", 4096, 1).access().direct);
  CHECK(file("/tmp", 4096, 1).access().why_buffered == "O_DIRECT is refused: Invalid argument");
  CHECK(belay::medium_of<by_thread::calls>("/tmp").text() == "buffered: O_DIRECT is refused: Invalid argument");
  now.make_direct = 0;
  now.alignment = std::size_t{1024};
  const belay::file_medium disk = belay::medium_of<by_thread::calls>("/tmp");
  CHECK(disk.text() == (disk.direct ? "direct, in blocks of 1024 bytes" : "buffered: " + disk.why_buffered));
}

TEST_CASE_TEMPLATE("what a stream could not write is said when its slot is used again, or at the end", Way, by_thread,
                   by_backward_ring) {
  const calm before;
  if (!exists<Way>()) return;
  const belay::streamed_layout sizes(4096, 4096);
  for (const int code : {EIO, ENOSPC}) {
    const blocks ring(sizes.ring_bytes(32768)), from(4096, 3), to(4096);
    belay::copy_stream<belay::host_stream> copies;
    belay::streamed_file<typename Way::calls> file({"/tmp", 4096, Way::access}, 32768, sizes, ring.all());
    now.result = -code;
    now.bad_offset = 8192;
    file.write(copies, 8192, from.all().data(), 4096);
    const auto expect_said = [&](auto&& what) {
      try {
        what();
        FAIL("nothing was thrown");
      } catch (const belay::tier_file_error& error) {
        CHECK(error.about().operation == belay::tier_file_operation::write);
        CHECK(error.about().fault == belay::fault_of(code));
        CHECK(error.about().offset == 8192);
        CHECK(error.about().bytes == 4096);
      }
    };
    expect_said([&] { file.read_now(to.all().data(), 8192, 4096, belay::where::current()); });
    file.write(copies, 8192, from.all().data(), 4096);
    expect_said([&] { file.settle(belay::where::current()); });
    now.bad_offset = -1;
  }
}
