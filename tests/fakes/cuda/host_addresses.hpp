// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Whether a kernel is given an address that a GPU does not reach: of the host's heap, stack or program. A device of the
// host would read it without a word.
#pragma once

#include <cxxabi.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <type_traits>
#include <typeinfo>

namespace fakes {

/// Whether addresses are looked for: padding is cleared before, for which a compiler is needed that can.
#if defined(__has_builtin)
inline constexpr bool finds_host_addresses = __has_builtin(__builtin_clear_padding);
#else
inline constexpr bool finds_host_addresses = false;
#endif

/// Whether that is a constant of the program. Kernels hand on names of them, which the host reads.
[[nodiscard]] inline bool is_constant(std::uintptr_t address) {
  struct search {
    std::uintptr_t address;
    bool found;
  };
  search what{address, false};
  const auto look = [](dl_phdr_info* object, std::size_t, void* of) {
    auto& wanted = *static_cast<search*>(of);
    for (int i = 0; i < object->dlpi_phnum; ++i) {
      const auto& part = object->dlpi_phdr[i];
      const std::uintptr_t first = object->dlpi_addr + part.p_vaddr;
      if (part.p_type == PT_LOAD && (part.p_flags & PF_W) == 0 && wanted.address - first < part.p_memsz)
        wanted.found = true;
    }
    return wanted.found ? 1 : 0;
  };
  ::dl_iterate_phdr(look, &what);
  return what.found;
}

/// The first address within `kernel` that is one of memory of this process, of which `reaches(address)` is false; null:
/// there is none, or none is looked for. What is behind an address is not looked at.
template <class K, class Reaches>
[[nodiscard]] const void* unreachable_address([[maybe_unused]] const K& kernel,
                                              [[maybe_unused]] const Reaches& reaches) {
#if defined(__has_builtin) && __has_builtin(__builtin_clear_padding)
  if constexpr (std::is_trivially_copyable_v<K> && sizeof(K) >= sizeof(void*) && alignof(K) >= alignof(void*)) {
    alignas(K) std::byte bytes[sizeof(K)];
    std::memcpy(bytes, &kernel, sizeof(K));
    __builtin_clear_padding(reinterpret_cast<K*>(bytes));
    const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
    const auto word_at = [&](std::size_t place) {
      std::uintptr_t word = 0;
      if (place + sizeof(word) <= sizeof(K)) std::memcpy(&word, bytes + place, sizeof(word));
      return word;
    };
    for (std::size_t at = 0; at < sizeof(K); at += sizeof(void*)) {
      const std::uintptr_t word = word_at(at);
      // Programs, heaps and stacks are up there, under sanitizers too; counts and what they keep for themselves are
      // not.
      if (word < 0x5000'0000'0000U || word >> 48 != 0) continue;
      const auto* const address = reinterpret_cast<const std::byte*>(word);
      // The name of a layer stands beside that of a file, in the site of a finding.
      if (reaches(address) || is_constant(word) || is_constant(word_at(at + sizeof(void*)))) continue;
      unsigned char in_core = 0;
      if (::mincore(reinterpret_cast<void*>(word / page * page), 1, &in_core) == 0) return address;
    }
  }
#endif
  return nullptr;
}

/// The name of a kernel, in a refusal.
template <class K>
[[nodiscard]] std::string name_of_kernel() {
  int failed = 0;
  char* const readable = abi::__cxa_demangle(typeid(K).name(), nullptr, nullptr, &failed);
  std::string name = failed == 0 ? readable : typeid(K).name();
  std::free(readable);
  return name;
}

}  // namespace fakes
