// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Records and call sites as text.
#pragma once

#include <cstring>

#include "belay/comm/flight_recorder.hpp"

namespace belay::inline BELAY_ABI {

[[gnu::cold]] BELAY_DECL std::string flight_record::text() const {
  if (what == operation::none) return "before its first operation";
  return std::string(reported   ? "last seen in "
                     : finished ? "after "
                                : "in ") +
         name(what) + " #" + std::to_string(number) +
         (group == 0 ? std::string() : " of group " + std::to_string(group)) + " at " + site;
}

[[gnu::cold]] BELAY_DECL std::string text_of(const flight_record& here, const flight_record& aside,
                                             const char* kind_aside) {
  std::string out = here.text();
  const auto is_open = [](const flight_record& last) { return last.what != operation::none && !last.finished; };
  if (is_open(aside) && !is_open(here)) out += std::string(", and in ") + kind_aside + aside.text().substr(2);
  return out;
}

[[gnu::cold]] BELAY_DECL void call_line::set(const char* file, int line) noexcept {
  char digits[16];
  std::size_t count = 0;
  for (auto rest = static_cast<unsigned>(line); count == 0 || rest > 0; rest /= 10) {
    digits[count++] = static_cast<char>('0' + rest % 10);
  }
  const char* const note = where{file, "", line}.in_standard_library() ? " (the standard library)" : "";
  const std::size_t room = sizeof characters - 1 - count - 1 - std::strlen(note);
  const std::size_t length = std::strlen(file);
  const std::size_t kept = length < room ? length : room;
  std::memset(characters, 0, sizeof characters);
  std::memcpy(characters, file + (length - kept), kept);
  characters[kept] = ':';
  for (std::size_t i = 0; i < count; ++i) characters[kept + 1 + i] = digits[count - 1 - i];
  std::memcpy(characters + kept + 1 + count, note, std::strlen(note));
}

[[gnu::cold]] BELAY_DECL std::string call_line::get() const {
  return std::string(characters, ::strnlen(characters, sizeof characters));
}

[[gnu::cold]] BELAY_DECL void latest_site::set(std::uint64_t position, const char* file, int line) noexcept {
  call_line text;
  text.set(file, line);
  since_.store(0, std::memory_order_relaxed);
  // A reader of one of these words sees, in the word that tells the position, that they are being written.
  for (std::size_t i = 0; i < words; ++i) {
    std::uint64_t word = 0;
    std::memcpy(&word, text.characters + i * sizeof word, sizeof word);
    text_[i].store(word, std::memory_order_release);
  }
  since_.store(position, std::memory_order_release);
}

[[gnu::cold]] BELAY_DECL std::string latest_site::of(std::uint64_t position) const {
  const std::uint64_t since = since_.load(std::memory_order_acquire);
  call_line text;
  for (std::size_t i = 0; i < words; ++i) {
    const std::uint64_t word = text_[i].load(std::memory_order_acquire);
    std::memcpy(text.characters + i * sizeof word, &word, sizeof word);
  }
  const bool kept = since != 0 && since <= position && since == since_.load(std::memory_order_relaxed);
  return kept ? text.get() : "a site that was not kept";
}

}  // namespace belay::inline BELAY_ABI
