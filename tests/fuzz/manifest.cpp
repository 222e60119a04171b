// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Any bytes as the manifest of a checkpoint, with the checksum that they then have: refused with the byte, or a
// manifest that is written as it was read, whose pieces lie in their tensors and files, shown in all the ways of
// belay-checkpoint.
#include <span>
#include <string>
#include <vector>

#include "belay/core/hash.hpp"
#include "belay/core/printable.hpp"
#include "belay/train/checkpoint.hpp"
#include "fuzz/support/target.hpp"
#include "tools/belay_checkpoint/coverage.hpp"
#include "tools/belay_checkpoint/show.hpp"

namespace {

// The bytes, and behind them what only a program computes.
std::string with_checksum(std::string_view body) {
  std::string out(body);
  const std::uint32_t checksum = belay::crc32c_of(std::as_bytes(std::span(body)));
  out += belay::manifest_text::checksum_field;
  belay::append_hex(out, checksum, 8);
  return out + "\"}\n";
}

void check(const belay::manifest& read) {
  for (const belay::manifest_tensor& tensor : read.tensors) {
    belay_checkpoint::coverage held(tensor.shape);
    std::uint64_t elements = 1;
    for (const std::uint64_t extent : tensor.shape) elements *= extent;
    for (std::size_t i = 0; i < tensor.pieces.size(); ++i) {
      const belay::manifest_piece& piece = tensor.pieces[i];
      fuzz::expect(piece.file < read.files.size(), "a piece lies in a file");
      fuzz::expect(piece.begin + piece.bytes() <= read.files[piece.file].bytes, "a piece ends in its file");
      fuzz::expect(piece.first + piece.count <= piece.box.elements(), "a piece lies in its box");
      held.add(i, piece);
    }
    for (const belay_checkpoint::wrong_box& each : held.wrong(16)) {
      fuzz::expect(each.first < elements, "what is not held once lies in the tensor");
      fuzz::expect(each.pieces.size() != 1, "what is held once is not told");
    }
  }
  const std::string text = belay::manifest_text::of(read);
  fuzz::expect(belay::manifest_text::of(belay::parse_manifest(text, "again")) == text,
               "a manifest is read as it is written");
  const std::string shown =
      belay_checkpoint::list_text({{"folder", read}}) + belay_checkpoint::details_text("folder", read);
  fuzz::expect(belay::printable_lines(shown) == shown, "what is shown is printable");
  static_cast<void>(belay_checkpoint::details_json("folder", read).dump());
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view given = fuzz::text_of(data, size);
  fuzz::refuses_with<belay::file_error>([&] { check(belay::parse_manifest(with_checksum(given), "manifest.json")); });
  // As it is, and as what another rank sends.
  fuzz::refuses_with<belay::file_error>([&] { check(belay::parse_manifest(given, "manifest.json")); });
  fuzz::refuses_with<belay::file_error>(
      [&] { static_cast<void>(belay::manifest_parser(given, "the state of rank 1", belay::where{}).parse_tensors()); });
  return 0;
}
