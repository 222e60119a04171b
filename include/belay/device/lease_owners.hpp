// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Owners of leased memory, by number: a number fits into the payload of a NaN, and into what an integer is when its
// memory was given back (device/poison.hpp). An owner is a call of a layer at one place of the program and what it
// wanted memory for; it keeps its number, so that a step that is like the one before makes no new ones.
//
//   belay::lease_owners owners;
//   const std::uint16_t mine = owners.number({.purpose = belay::lease_purpose::scratch, .layer = "head"});
//   owners.text(belay::owner_in(loss));  // "scratch of layer 0 'head' (micro-batch 0), ..."; empty where it names none
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "belay/core/config.hpp"
#include "belay/core/where.hpp"
#include "belay/device/poison.hpp"

namespace belay::inline BELAY_ABI {

/// The purpose of a lease in a step.
enum class lease_purpose : std::uint8_t { kept, remembered, scratch, gradient, gathered, staged };

/// An owner of a lease. `layer` and `parameter` are copied; `more` parameters are in the same lease.
struct lease_owner {
  lease_purpose purpose = lease_purpose::kept;  ///< why it was leased
  const char* layer = "";
  const char* parameter = "";
  std::size_t layer_index = 0;  ///< of the layer
  std::size_t micro_batch = 0;  ///< of the call
  std::size_t more = 0;
  where at;  ///< the call's site
};

class lease_owners {
 public:
  /// Room for the owners of a small model; it grows with those of a larger one, in its first steps.
  lease_owners() : places_(table_size, 0) { entries_.reserve(64); }

  /// The owner's number, from 1; 0 where there are more than a payload can name. The last micro-batch is the one that
  /// is said. Called where memory is leased; what it cannot allocate is an owner without a number.
  [[nodiscard]] std::uint16_t number(const lease_owner& of) noexcept;

  /// The owner that memory had last when it was read too late, which may be one after the reader's own; empty for a
  /// number that names nobody.
  [[nodiscard]] std::string text(named_owner found) const;

  /// Memory that was given back could not be overwritten, as by a device that has failed: for the next who can throw.
  void note_failure(std::exception_ptr thrown) noexcept {
    if (failure_ == nullptr) failure_ = std::move(thrown);
  }
  void forget_failure() noexcept { failure_ = nullptr; }
  void expect_overwritten();

 private:
  static constexpr std::size_t table_size = 8192;  // twice as many as there are numbers

  // No number ends in six zeros, which a narrow NaN of the processor's own has, nor like memory of which nothing is
  // known.
  static constexpr std::size_t in_row = 62, unknown_end = 0x3a;
  [[nodiscard]] static constexpr std::size_t number_of(std::size_t index) noexcept {
    const std::size_t place = index % in_row + 1;
    return index / in_row * 64 + (place < unknown_end ? place : place + 1);
  }
  [[nodiscard]] static constexpr std::size_t index_of(std::size_t number) noexcept {
    const std::size_t place = number % 64;
    return number / 64 * in_row + (place < unknown_end ? place : place - 1) - 1;
  }
  [[nodiscard]] bool named(std::size_t number) const noexcept {
    return number % 64 != 0 && number % 64 != unknown_end && index_of(number) < entries_.size();
  }

  [[nodiscard]] static std::size_t hash(const lease_owner& of) noexcept;

  struct known_owner {
    lease_owner of;
    std::array<char, 64> layer{}, parameter{};

    explicit known_owner(const lease_owner& owner) noexcept : of(owner) { name(owner); }
    [[nodiscard]] bool is(const lease_owner& other) const noexcept;
    void name(const lease_owner& owner) noexcept;
    [[nodiscard]] std::string text() const;
  };

  std::vector<known_owner> entries_;
  std::vector<std::uint16_t> places_;  // numbers, by hash
  std::exception_ptr failure_;
};

}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/device/lease_owners.ipp"  // IWYU pragma: export
#endif
