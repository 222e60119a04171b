// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Calls that a kernel makes beside the program, as a file tier uses them: submitted with a tag, over in any order.
// IWYU pragma: private, include "belay/device/tier_file.hpp"
#pragma once

#include <cerrno>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>

#include "belay/core/bounds.hpp"
#include "belay/core/config.hpp"
#include "belay/device/tier_file/error.hpp"

namespace belay::inline BELAY_ABI {

/// One pread or pwrite, of at most 1 GiB.
struct transfer_call {
  tier_file_operation operation = tier_file_operation::read;
  int descriptor = -1;
  std::byte* address = nullptr;  // of a write it is only read
  std::size_t bytes = 0;
  std::uint64_t offset = 0;
};

/// `result` is the number of bytes moved, or an error number below 0.
struct transfer_completion {
  std::uint64_t tag = 0;
  std::int64_t result = 0;
};

/// `open` says why there is none, or "". A refused `submit` returns an error number, and its memory is not used. `wait`
/// blocks until one call is over, `poll` does not; these two are called by one thread at a time, `submit` as well, but
/// one of each may run at the same time. The destructor may be called when no call is under way.
template <class R>
concept transfer_ring = std::default_initializable<R> && requires(R ring, unsigned calls, const transfer_call& call,
                                                                  std::uint64_t tag, transfer_completion& over) {
  { ring.open(calls) } -> std::same_as<std::string>;
  { ring.submit(call, tag) } noexcept -> std::same_as<int>;
  { ring.wait() } noexcept -> std::same_as<transfer_completion>;
  { ring.poll(over) } noexcept -> std::same_as<bool>;
};

/// Where there is no liburing.
struct no_transfer_ring {
  [[nodiscard]] static std::string open(unsigned) { return "compiled without liburing (BELAY_HAS_LIBURING is not 1)"; }
  [[nodiscard]] static int submit(const transfer_call&, std::uint64_t) noexcept { return ENOSYS; }
  [[nodiscard]] static transfer_completion wait() noexcept { return {}; }
  [[nodiscard]] static bool poll(transfer_completion&) noexcept { return false; }
};

static_assert(transfer_ring<no_transfer_ring>);

}  // namespace belay::inline BELAY_ABI

#if defined(BELAY_HAS_LIBURING) && BELAY_HAS_LIBURING == 1
#include <liburing.h>
#include <sched.h>

#include <cerrno>
#include <cstdint>
#include <string>

#include "belay/core/unique_fd.hpp"

namespace belay::inline BELAY_ABI {

/// io_uring through liburing: only where BELAY_HAS_LIBURING is defined to 1, and the program is linked with it.
class liburing_ring {
 public:
  liburing_ring() = default;
  liburing_ring(const liburing_ring&) = delete;
  liburing_ring& operator=(const liburing_ring&) = delete;
  ~liburing_ring() {
    if (open_) ::io_uring_queue_exit(&ring_);
  }

  [[nodiscard]] std::string open(unsigned calls) {
    // Kernels, containers and seccomp filters may refuse it, the last of them not before the first call.
    if (const int refused = ::io_uring_queue_init(calls, &ring_, 0); refused < 0)
      return "io_uring_queue_init: " + error_text(-refused);
    open_ = true;
    static_cast<void>(::io_uring_ring_dontfork(&ring_));  // a forked child is not to unmap or use it
    io_uring_probe* const known = ::io_uring_get_probe_ring(&ring_);
    const bool suffices = known != nullptr && ::io_uring_opcode_supported(known, IORING_OP_READ) != 0 &&
                          ::io_uring_opcode_supported(known, IORING_OP_WRITE) != 0;
    if (known != nullptr) ::io_uring_free_probe(known);
    if (!suffices) return "this kernel's io_uring cannot read and write";
    io_uring_sqe* const entry = ::io_uring_get_sqe(&ring_);
    ::io_uring_prep_nop(entry);
    ::io_uring_sqe_set_data64(entry, withdrawn);
    if (const int refused = submit_all(); refused != 0) return "io_uring_enter: " + error_text(refused);
    return {};
  }

  [[nodiscard]] int submit(const transfer_call& call, std::uint64_t tag) noexcept {
    io_uring_sqe* entry = ::io_uring_get_sqe(&ring_);
    if (entry == nullptr) {  // full of what was withdrawn
      if (const int refused = submit_all(); refused != 0) return refused;
      entry = ::io_uring_get_sqe(&ring_);
      if (entry == nullptr) return EBUSY;
    }
    const auto bytes = static_cast<unsigned>(call.bytes);
    if (call.operation == tier_file_operation::read)
      ::io_uring_prep_read(entry, call.descriptor, call.address, bytes, call.offset);
    else
      ::io_uring_prep_write(entry, call.descriptor, call.address, bytes, call.offset);
    ::io_uring_sqe_set_data64(entry, tag);
    const int refused = submit_all();
    if (refused != 0) {  // a later one must not submit it
      ::io_uring_prep_nop(entry);
      ::io_uring_sqe_set_data64(entry, withdrawn);
    }
    return refused;
  }

  [[nodiscard]] transfer_completion wait() noexcept {
    for (;;) {
      io_uring_cqe* entry = nullptr;
      // Where waiting itself fails (a signal, most of all) the call goes on: its memory is not free, so it is awaited.
      if (::io_uring_wait_cqe(&ring_, &entry) != 0 || entry == nullptr) {
        ::sched_yield();
        continue;
      }
      const transfer_completion over = take(entry);
      if (over.tag != withdrawn) return over;
    }
  }

  [[nodiscard]] bool poll(transfer_completion& over) noexcept {
    io_uring_cqe* entry = nullptr;
    while (::io_uring_peek_cqe(&ring_, &entry) == 0 && entry != nullptr) {
      over = take(entry);
      if (over.tag != withdrawn) return true;
      entry = nullptr;
    }
    return false;
  }

 private:
  static constexpr std::uint64_t withdrawn = largest_value<std::uint64_t>;

  [[nodiscard]] transfer_completion take(io_uring_cqe* entry) noexcept {
    const transfer_completion over{entry->user_data, entry->res};
    ::io_uring_cqe_seen(&ring_, entry);
    return over;
  }

  [[nodiscard]] int submit_all() noexcept {
    while (::io_uring_sq_ready(&ring_) != 0) {
      const int submitted = ::io_uring_submit(&ring_);
      if (submitted >= 0 || submitted == -EINTR) continue;
      if (submitted != -EAGAIN && submitted != -EBUSY) return -submitted;
      ::sched_yield();  // the kernel has no memory for it just now
    }
    return 0;
  }

  io_uring ring_{};
  bool open_ = false;
};

using system_transfer_ring = liburing_ring;

static_assert(transfer_ring<liburing_ring>);

}  // namespace belay::inline BELAY_ABI
#else
namespace belay::inline BELAY_ABI {

using system_transfer_ring = no_transfer_ring;

}  // namespace belay::inline BELAY_ABI
#endif
