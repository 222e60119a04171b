// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The only macros of the library. The level of checking changes what a handle holds, so it is part of the namespace:
// translation units built with different levels do not link with each other's types.
//
//   if constexpr (belay::checked(belay::check_level::local)) {
//     // only in checked builds: BELAY_CHECKS is 1 or 2
//   }
#pragma once

#if defined(BELAY_ABI)
#error "Belay is here already, by a file of single_include or from another folder: include it once"
#endif

// 0: release. 1: local checks and the ledger's details. 2: also compared across ranks.
#ifndef BELAY_CHECKS
#ifdef NDEBUG
#define BELAY_CHECKS 0
#else
#define BELAY_CHECKS 1
#endif
#endif

#if BELAY_CHECKS == 0
#define BELAY_ABI v0_checks0
#elif BELAY_CHECKS == 1
#define BELAY_ABI v0_checks1
#elif BELAY_CHECKS == 2
#define BELAY_ABI v0_checks2
#else
#error "BELAY_CHECKS is 0 (release), 1 (local checks) or 2 (also across ranks)"
#endif

// Arithmetic that runs on the host and on a device is marked once, here.
#if defined(__CUDACC__)
#define BELAY_HD __host__ __device__
#else
#define BELAY_HD
#endif

// Functions that depend on no type of the caller, and are on no hot path, stand in files that end in .ipp. By default
// a header includes them, and they are inline. With BELAY_SEPARATE_COMPILATION headers only declare them, and the one
// source of a program that includes belay/source.hpp defines them.
#if defined(BELAY_SEPARATE_COMPILATION)
#define BELAY_DECL
#else
#define BELAY_DECL inline
#endif

// With these attributes Clang's consumed analysis (-Wconsumed) finds a handle that is never discharged. For the other
// compilers they are empty; there the typed tape and the ledger find it.
#if defined(__clang__) && !defined(__CUDA_ARCH__)
#define BELAY_OBLIGATION [[clang::consumable(unconsumed)]]
#define BELAY_OPENS [[clang::return_typestate(unconsumed)]]
#define BELAY_IF_OPEN [[clang::callable_when("unconsumed")]]
#define BELAY_DISCHARGES [[clang::callable_when("unconsumed"), clang::set_typestate(consumed)]]
#define BELAY_IF_DISCHARGED [[clang::callable_when("consumed")]]
#define BELAY_ENDS [[clang::set_typestate(consumed)]]
#else
#define BELAY_OBLIGATION
#define BELAY_OPENS
#define BELAY_IF_OPEN
#define BELAY_DISCHARGES
#define BELAY_IF_DISCHARGED
#define BELAY_ENDS
#endif

namespace belay::inline BELAY_ABI {

/// The checks of a build. `release`: none that costs; `local`: of this rank's own calls; `across_ranks`: also that
/// ranks agree, which costs small collectives.
enum class check_level : int { release = 0, local = 1, across_ranks = 2 };

// Clang before 20 tells by __has_feature alone.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool sanitized_addresses = true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
inline constexpr bool sanitized_addresses = true;
#else
inline constexpr bool sanitized_addresses = false;
#endif
#else
/// Whether an address sanitizer looks at memory, so that freed memory is told to it.
inline constexpr bool sanitized_addresses = false;
#endif

// Only that one can be told which memory nobody may touch.
#if defined(__SANITIZE_ADDRESS__)
inline constexpr bool address_sanitizer = true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
inline constexpr bool address_sanitizer = true;
#else
inline constexpr bool address_sanitizer = false;
#endif
#else
/// Whether an address sanitizer looks at memory.
inline constexpr bool address_sanitizer = false;
#endif

/// The level of this program, which is part of every type's name.
inline constexpr check_level checks = static_cast<check_level>(BELAY_CHECKS);

#if defined(BELAY_SEPARATE_COMPILATION) && !defined(__CUDA_ARCH__)
/// Defined by belay/source.hpp: the linker names it where the core has another BELAY_CHECKS than the program, or is
/// absent.
extern const char no_core_of_the_same_BELAY_CHECKS_is_linked;
namespace {
[[gnu::used]] const char* const linked_core = &no_core_of_the_same_BELAY_CHECKS_is_linked;
}  // namespace
#endif

/// Whether checks of that level are done.
[[nodiscard]] constexpr bool checked(check_level level) noexcept { return checks >= level; }

}  // namespace belay::inline BELAY_ABI
