docker run --rm -v /:/host --privileged alpine chroot /host sh -c 'id'
