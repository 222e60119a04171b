// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Any bytes as a safetensors file: refused with the byte, or read and written again as the same tensors.
#include "belay/train/safetensors.hpp"

#include <algorithm>
#include <vector>

#include "fuzz/support/target.hpp"

namespace safetensors = belay::safetensors;

namespace {

void read_whole(const std::string& path, std::size_t size) {
  const safetensors::reader in(path);
  std::vector<std::byte> bytes;
  std::vector<safetensors::declaration> declared;
  for (const safetensors::tensor& each : in.tensors()) {
    fuzz::expect(in.find(each.name) == &each, "a tensor is found by its name");
    fuzz::expect(each.end <= size, "a tensor lies in the file");
    bytes.resize(std::min<std::size_t>(each.bytes(), 64));
    in.read_bytes(each.name, 0, bytes);
    in.read_bytes(each.name, each.bytes() - bytes.size(), bytes);
    declared.push_back({each.name, each.type, each.shape});
  }
  const safetensors::layout again = safetensors::lay_out(declared, in.metadata());
  const std::string_view text = std::string_view(again.prefix).substr(8);
  const safetensors::header back = safetensors::parse_header(text, again.data_bytes, "written again");
  fuzz::expect(back.metadata == in.metadata(), "metadata is written as it was read");
  fuzz::expect(back.tensors.size() == in.tensors().size(), "all tensors are written");
  for (std::size_t i = 0; i < back.tensors.size(); ++i) {
    const safetensors::tensor& was = in.tensors()[i];
    const safetensors::tensor& is = back.tensors[i];
    fuzz::expect(is.name == was.name && is.type == was.type && is.shape == was.shape && is.begin == was.begin &&
                     is.end == was.end,
                 "a tensor is written as it was read");
  }
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const fuzz::memory_file file("safetensors");
  file.hold(fuzz::text_of(data, size));
  fuzz::refuses_with<belay::file_error>([&] { read_whole(file.path(), size); });
  return 0;
}
